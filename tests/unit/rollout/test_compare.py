# SPDX-License-Identifier: Apache-2.0
"""Answers compared: how far they are apart, beyond what noise, and what the command tells of it."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.fakes.task_server import BAD, TaskServer, task_server
from tests.json_page import as_documented
from tests.unit.conftest import Cli, Sandbox
from tests.unit.releases.releasing import released_once, releases, uncompiled
from tests.unit.runtimes.test_reloading import embedded_server
from tritonctl.errors import RepositoryError, UsageError
from tritonctl.host.progress import Progress, Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.releases.store import StoredRelease
from tritonctl.repository.publish import RenderedRepository
from tritonctl.rollout import comparison_targets as sides
from tritonctl.rollout.compare import ComparedQuestion, VersionComparison, compare_answers
from tritonctl.rollout.comparison_page import comparison_page
from tritonctl.rollout.differences import (
    Answer,
    LabelsAnswer,
    ScoresAnswer,
    TextAnswer,
    VectorAnswer,
    cosine,
    distance,
    distances,
    first_divergence,
    kendall_distance,
    log_prob_difference,
    neighbour_recall,
)
from tritonctl.rollout.replay_prompts import ReplayPrompt, read_prompts
from tritonctl.runtimes import slot_servers
from tritonctl.runtimes.embedded import lifecycle as embedded
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles, write_state
from tritonctl.runtimes.slot_servers import Slot

__all__ = ["released_once", "releases", "uncompiled"]  # fixtures

WORDS = ["<b>one</b>", "two", "three"]


def text(*tokens: int, log_probs: tuple[float, ...] = ()) -> TextAnswer:
    """An answer of these tokens."""
    return TextAnswer(" ".join(WORDS[token % 3] for token in tokens), tokens, log_probs)


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        (text(1, 2, 3), text(1, 2, 3), None),
        (text(1, 2, 3), text(1, 4, 3), 1),
        (text(1, 2, 3), text(1, 2), 2),
        (text(), text(7), 0),
    ],
)
def test_the_first_token_that_differs(
    one: TextAnswer, other: TextAnswer, place: int | None
) -> None:
    """From either side; where one text ends before the other, that is it."""
    assert first_divergence(one, other) == first_divergence(other, one) == place
    assert distance(one, other) == float(place is not None)


def test_equal_ids_may_be_another_text() -> None:
    """That of a wrong detokenizer; where one version tells no ids, texts are all there is."""
    right, wrong = TextAnswer("nine hundred", (4, 5)), TextAnswer("NINE HUNDRED", (4, 5))
    assert distance(right, wrong) == 1
    assert distance(right, TextAnswer("nine hundred", ())) == 0
    assert distance(right, TextAnswer("nine hundred", (4, 6))) == 1
    assert distance(TextAnswer("nine", ()), TextAnswer("ten", (4,))) == 1


def test_log_probs_of_the_common_beginning() -> None:
    """What comes after the first other token is of another text."""
    one = text(1, 2, 3, log_probs=(-0.1, -0.2, -9.0))
    other = text(1, 2, 4, log_probs=(-0.2, -0.4, -1.0))
    assert log_prob_difference(one, other) == pytest.approx(0.15)
    assert log_prob_difference(one, text(5, log_probs=(-1.0,))) is None


def test_vectors() -> None:
    """Their angle counts, not their length; what cannot be compared is as far as can be."""
    one = VectorAnswer((1.0, 0.0))
    assert distance(one, VectorAnswer((5.0, 0.0))) == 0
    assert distance(one, VectorAnswer((math.cos(0.1), math.sin(0.1)))) == pytest.approx(
        0.2235, abs=1e-3
    )
    assert distance(one, VectorAnswer((0.0, 1.0))) == 1
    assert cosine(one, VectorAnswer((0.0, 0.0))) == cosine(one, VectorAnswer((1.0,))) == 0


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ((3, 2, 1), (30, 20, 10), 0),
        ((3, 2, 1), (1, 2, 3), 1),
        ((3, 2, 1), (2, 3, 1), 1 / 3),
        ((3, 2, 1), (2, 2, 1), 1 / 6),
        ((1,), (9,), 0),
        ((1, 2), (1,), 1),
    ],
)
def test_orders(one: tuple[float, ...], other: tuple[float, ...], share: float) -> None:
    """Kendall's distance."""
    assert kendall_distance(one, other) == pytest.approx(share)
    assert distance(ScoresAnswer(one), ScoresAnswer(other)) == pytest.approx(share)


def test_labels() -> None:
    """The best label decides; another kind of answer is another answer."""
    assert distance(LabelsAnswer(("a", "b"), (0.6, 0.4)), LabelsAnswer(("a", "b"), (0.9, 0.1))) == 0
    assert distance(LabelsAnswer(("a", "b"), (0.6, 0.4)), LabelsAnswer(("b", "a"), (0.6, 0.4))) == 1
    assert distance(LabelsAnswer(("a",), (1.0,)), ScoresAnswer((1.0,))) == 1


angles = st.floats(0, 6.3).map(lambda angle: VectorAnswer((math.cos(angle), math.sin(angle))))
orders = st.permutations(range(4)).map(lambda order: ScoresAnswer(tuple(map(float, order))))
texts = st.lists(st.integers(0, 1), max_size=3).map(lambda tokens: text(*tokens))


@examples(100)
@given(st.one_of(*(st.tuples(kind, kind, kind) for kind in (angles, orders, texts))))
def test_every_distance_is_a_metric(answers: tuple[Answer, Answer, Answer]) -> None:
    """Without it, the judge's bets would not be bounded."""
    one, two, three = answers
    assert distance(one, two) == pytest.approx(distance(two, one))
    assert distance(one, three) <= distance(one, two) + distance(two, three) + 1e-6
    found = distances(one, two, three)
    assert found.candidate >= found.noise / 2 - 1e-6


def test_recall_of_neighbours() -> None:
    """The same neighbours, or those of a version that turned everything round."""
    draw = random.Random(1)  # noqa: S311 - a seeded experiment
    vectors = [VectorAnswer(tuple(draw.gauss(0, 1) for _ in range(8))) for _ in range(30)]
    shuffled = vectors[15:] + vectors[:15]
    assert neighbour_recall(vectors, vectors, 10) == 1
    found = neighbour_recall(vectors, shuffled, 10)
    assert found is not None
    assert 0.2 < found < 0.5
    assert neighbour_recall(vectors[:2], vectors[:2], 10) is None


def asked(different: int, noisy: int = 0, whole: int = 60) -> list[ComparedQuestion]:
    """So many questions of which B answers some otherwise, and A others in two ways."""
    same, other = text(1, 2, 3), text(1, 0)
    return [
        ComparedQuestion(
            f"prompt {number} <script>",
            same,
            other if whole - noisy <= number else same,
            other if number < different else same,
        )
        for number in range(whole)
    ]


def comparison(different: int, noisy: int = 0, *, shown: bool = False) -> VersionComparison:
    """Of these."""
    names = "127.0.0.1:8001", "127.0.0.1:8101"
    return compare_answers(
        asked(different, noisy), names, ("speller", "text_generation"), show_texts=shown
    )


@pytest.mark.parametrize(
    ("different", "noisy", "verdict"),
    [
        (0, 0, "no difference beyond noise"),
        (0, 40, "no difference beyond noise"),
        (3, 0, "no difference beyond noise"),
        (15, 0, "different beyond noise"),
        (60, 5, "different beyond noise"),
    ],
)
def test_verdicts(different: int, noisy: int, verdict: str) -> None:
    """Of sixty questions."""
    found = comparison(different, noisy)
    assert found.verdict == verdict
    assert (found.noise.count, found.different.count) == (noisy, different)


def test_what_is_tolerated() -> None:
    """An engine in another precision may differ in every fourth answer, if so agreed."""
    names, served = ("a", "b"), ("speller", "text_generation")
    assert not compare_answers(asked(15), names, served, tolerated=0.25).differs
    assert compare_answers(asked(45), names, served, tolerated=0.25).differs


def test_prompts_are_left_out() -> None:
    """Unless they are asked for: of the record and of the page."""
    hidden, shown = comparison(15), comparison(15, shown=True)
    assert "prompt 3" not in json.dumps(hidden.as_record())
    assert "prompt 3" not in comparison_page([hidden], title="t", show_texts=False)
    assert hidden.examples[0].note == "token 2; 3 and 2 tokens"
    assert shown.examples[3].prompt == "prompt 3 <script>"
    page = comparison_page([shown], title="t", show_texts=True)
    assert "prompt 3 &lt;script&gt;" in page
    assert "<script" not in page
    assert "different beyond noise" in page


def test_a_question_on_each_line(tmp_path: Path) -> None:
    """Plain, or JSON by the name; a query has documents."""
    plain, objects = tmp_path / "asked.txt", tmp_path / "asked.jsonl"
    plain.write_bytes(b"one\r\n\ntwo")
    objects.write_text('{"query": "q", "documents": ["a", "b"]}\n', encoding="utf-8")
    assert read_prompts(plain, "embedding") == [ReplayPrompt("one"), ReplayPrompt("two")]
    assert read_prompts(objects, "rerank") == [ReplayPrompt("q", ("a", "b"))]


@pytest.mark.parametrize(
    ("name", "content", "task", "said"),
    [
        ("a.txt", b"", "embedding", "has 0 lines, expected 1 to 10000"),
        ("a.txt", b"x\n" * 10_001, "embedding", "has 10001 lines"),
        ("a.txt", b"x\n\xff", "embedding", "a.txt:2: not UTF-8"),
        ("a.txt", b"x", "rerank", "a.txt:1: a rerank needs a query and documents"),
        ("a.jsonl", b"{", "embedding", "a.jsonl:1: invalid JSON"),
        ("a.jsonl", b"[" * 100_000, "embedding", "a.jsonl:1: invalid JSON"),
        ("a.jsonl", b"[]", "embedding", "expected an object with text_input or text"),
        ("a.jsonl", b'{"query": "q"}', "rerank", "expected an object with query and documents"),
        ("a.jsonl", b'{"query": "q", "documents": [1]}', "rerank", "query and documents"),
    ],
)
def test_files_that_ask_nothing(
    tmp_path: Path, name: str, content: bytes, task: str, said: str
) -> None:
    """Told with the line."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as refused:
        read_prompts(tmp_path / name, task)
    assert said in refused.value.problem


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Told with its name."""
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt", "embedding")


@pytest.fixture
def servers() -> Iterator[tuple[TaskServer, TaskServer]]:
    """Two versions of the same models."""
    with task_server() as a, task_server() as b:
        yield a, b


def prompts(folder: Path, name: str = "asked.txt") -> Path:
    """Forty texts, or queries."""
    file = folder / name
    lines = [f"text {number} {'long ' * (number % 5)}" for number in range(40)]
    if name.endswith("l"):
        lines = [json.dumps({"query": one, "documents": ["a", "bb", "c" * 9]}) for one in lines]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_the_command(cli: Cli, servers: tuple[TaskServer, TaskServer], tmp_path: Path) -> None:
    """Two versions of an encoder whose last place differs by a factor."""
    a, b = servers
    b.factor = -40.0
    report = tmp_path / "report.html"
    arguments = ("rollout", "compare", a.url, b.url, "--prompts", prompts(tmp_path))
    done = cli(*arguments, "--model", "encoder", "-o", report, "--json")
    assert done.returncode == 0, done.stderr
    record = as_documented("rollout compare", done.stdout)
    assert (record["verdict"], record["questions"]) == ("different beyond noise", 40)
    assert record["noise"]["count"] == 0
    assert record["different"]["count"] == 40
    assert "text 3" not in done.stdout + report.read_text(encoding="utf-8")
    assert len(a.requests) == 2 * len(b.requests) == 80


@pytest.mark.parametrize(("model", "file"), [("classifier", "asked.txt"), ("reranker", "a.jsonl")])
def test_versions_that_are_alike(
    cli: Cli, servers: tuple[TaskServer, TaskServer], tmp_path: Path, model: str, file: str
) -> None:
    """As a table."""
    a, b = servers
    arguments = ("--prompts", prompts(tmp_path, file), "--model", model)
    done = cli("rollout", "compare", a.url, b.url, *arguments)
    assert done.returncode == 0, done.stderr
    assert "no difference beyond noise" in done.stdout
    assert "0 of 40 = 0.0 % [0.0, 8.8]" in done.stdout


def test_questions_without_an_answer(
    cli: Cli, servers: tuple[TaskServer, TaskServer], tmp_path: Path
) -> None:
    """Named, and not counted."""
    file = tmp_path / "asked.txt"
    file.write_bytes(b"good\n" + BAD + b"\nfine")
    a, b = (server.url for server in servers)
    done = cli("rollout", "compare", a, b, "--prompts", file, "--model", "encoder")
    assert done.returncode == 0, done.stderr
    assert "0 of 2" in done.stdout
    assert "question 2: " in done.stderr


def test_a_release_that_is_served(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its number: the server that has it is asked, whichever slot it is in."""
    stored = StoredRelease(tmp_path / "3-0d5f2a7c91be", None)
    there = SimpleNamespace(release=stored.name, endpoint=Endpoint("host:1"))
    monkeypatch.setattr(sides, "stored_releases", lambda _: [stored])
    found: dict[Slot, SimpleNamespace | None] = {Slot.A: None, Slot.B: there}
    monkeypatch.setattr(slot_servers, "server_in_slot", lambda _, slot: found[slot])
    project = sandbox.load()
    with sides.release_endpoint(project, "3", Silent()) as endpoint:
        assert endpoint.url == "host:1"
    found[Slot.B] = SimpleNamespace(release="4-000000000000", endpoint=None)
    with (
        pytest.raises(RepositoryError),  # to be served by itself, and damaged
        sides.release_endpoint(project, "3", Silent()),
    ):
        raise AssertionError("it is served")


def test_a_release_that_is_not_served(
    built: Sandbox, releases: list[StoredRelease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a server of its own, on free ports, which ends with the block; nothing is left."""
    started: list[tuple[Project, RenderedRepository, ServerFiles]] = []
    ended: list[ServerFiles] = []
    state = embedded_server(os.getpid(), 1, (1, 2, 3), [])

    def start(
        project: Project, rendered: RenderedRepository, _: str, files: ServerFiles, __: Progress
    ) -> EmbeddedServer:
        started.append((project, rendered, files))
        write_state(files, state)
        return state

    monkeypatch.setattr(embedded, "start", start)
    monkeypatch.setattr(embedded, "stop", lambda _, files: ended.append(files))
    project = built.load()
    left = ServerFiles(project.state / "beside-999999999-0a0a0a0a")  # by one that was killed
    write_state(left, state)
    with sides.release_endpoint(project, "1", Silent()) as endpoint:
        assert endpoint == state.endpoint
        served, rendered, files = started[0]
        assert (served.gateway, served.frontend, served.server.grpc_port) == (None, None, 0)
        assert rendered.repository == releases[0].repository
        assert ended == [left]
    assert ended == [left, files]
    assert not [*project.state.glob("beside-*")]


def test_questions_of_a_recording(tmp_path: Path) -> None:
    """As the shadow keeps them: those to other models, and what is no single text, are left out."""
    file = tmp_path / "shadow-prompts.jsonl"
    lines: list[dict[str, object]] = [
        {"at": 1.5, "model": "speller", "text_input": "one", "answers": ["a"]},
        {"at": 2.5, "model": "chat", "text_input": "two"},
        {"at": 3.5, "model": "speller", "messages": [{"role": "user", "content": "three"}]},
        {"text_input": "four"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = read_prompts(file, "text_generation", "speller")
    assert [one.text for one in found] == ["one", "four"]
    file.write_text(json.dumps(lines[1]), encoding="utf-8")
    with pytest.raises(UsageError, match="has no prompts for speller"):
        read_prompts(file, "text_generation", "speller")


def test_what_is_refused(
    cli: Cli, sandbox: Sandbox, servers: tuple[TaskServer, TaskServer], tmp_path: Path
) -> None:
    """What is no release, models that are not compared."""
    sandbox.write()
    a, b = (server.url for server in servers)
    file = prompts(tmp_path)
    release = cli("rollout", "compare", a, "7", "--prompts", file, "--model", "encoder")
    assert (release.returncode, "no release `7`" in release.stderr) == (2, True)
    plain = cli("rollout", "compare", a, b, "--prompts", file, "--model", "plain")
    assert (plain.returncode, "answers of tensors cannot be compared" in plain.stderr) == (2, True)
    unknown = cli("rollout", "compare", a, b, "--prompts", file, "--model", "none")
    assert unknown.returncode == 2

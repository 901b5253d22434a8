# SPDX-License-Identifier: Apache-2.0
"""`embed`, `classify` and `rerank` of a real Triton's models; killed amid a file, or its server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import run_here
from tests.server.plain_triton import PlainTriton
from tests.servers import Handle, wait_until
from tests.task_models import MAX_TOKENS, Reference, texts
from tests.unit.checks.repositories import put
from tritonctl.errors import ItemsRejectedError
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.delivery import Delivery
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

CONFIG = """\
backend: "python"
max_batch_size: 16
dynamic_batching { default_queue_policy { max_queue_size: 3 } }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "truncate" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "embedding" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "num_input_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "truncated" data_type: TYPE_BOOL dims: [ 1 ] }
]
"""
# The vector of a text: its length, and the sum of its bytes. `first` is refused by its index.
CODE = """\
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.01)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[:, 0]
        for index, text in enumerate(texts):
            if b"BAD" in text:
                place = f"text_input[{index}]" if len(texts) > 1 else "text_input"
                error = pb_utils.TritonError(f"{place} is bad", pb_utils.TritonError.INVALID_ARG)
                return pb_utils.InferenceResponse(error=error)
        vectors = np.array([[len(text), sum(text)] for text in texts], dtype=np.float32)
        counts = np.array([[len(text)] for text in texts], dtype=np.int32)
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("embedding", vectors),
            pb_utils.Tensor("num_input_tokens", counts),
            pb_utils.Tensor("truncated", counts > 1000),
        ])
"""
TEXTS = [f"Zeile {number} " * (1 + number * 7 % 23) for number in range(2000)]


def vector(text: str) -> list[float]:
    """What the model answers."""
    return [float(len(text.encode())), float(sum(text.encode()))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainTriton]:
    """A server with the model, whose queue holds three requests."""
    folder = tmp_path_factory.mktemp("embed")
    put(folder / "models", {"encoder/config.pbtxt": CONFIG, "encoder/1/model.py": CODE})
    server = PlainTriton(folder / "models", folder / "log")
    yield server
    server.stop()


@pytest.fixture
def triton(request: pytest.FixtureRequest, plain: PlainTriton) -> PlainTriton:
    """It, alive."""
    return plain.ready(request.node)


class Embedding:
    """Runs of one command in `folder`, which ends early now and then."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "out.jsonl"
        self.lines = folder / "lines.txt"
        self.lines.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")

    def start(self, url: str, *options: str) -> subprocess.Popen[str]:
        """It, in the background."""
        words = ["embed", "encoder", self.lines, "--output", self.output, "--url", url, *options]
        command = [sys.executable, "-m", "tritonctl", *map(str, words)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def has_come(self, process: subprocess.Popen[str], least: int) -> bool:
        """Whether it has written more than these bytes; a run that has ended has come too far."""
        assert process.poll() is None, process.communicate()[1]
        part = self.output.with_name(f"{self.output.name}.part")
        return part.exists() and part.stat().st_size > least

    def finish(self, url: str) -> None:
        """Run it to its end: one line for each, in their order, with its own vector."""
        last = self.start(url)
        _, said = last.communicate()
        assert last.returncode == 0, said
        given = [json.loads(line) for line in self.output.read_text(encoding="utf-8").splitlines()]
        assert [one["index"] for one in given] == list(range(len(TEXTS)))
        assert [one["embedding"] for one in given] == [vector(text) for text in TEXTS]
        assert [path.name for path in self.output.parent.glob("out*")] == ["out.jsonl"]


def test_the_command_is_killed(triton: PlainTriton, tmp_path: Path) -> None:
    """SIGKILL amid the file, twice."""
    run = Embedding(tmp_path)
    for least in (1, 80_000):
        process = run.start(triton.url)
        wait_until(partial(run.has_come, process, least), "it writes")
        process.kill()
        process.communicate()
        assert not run.output.exists()
    run.finish(triton.url)


def test_its_server_is_killed(
    request: pytest.FixtureRequest, triton: PlainTriton, tmp_path: Path
) -> None:
    """Exit code 7 once the agreed time is over; another server goes on, at another address."""
    run = Embedding(tmp_path)
    process = run.start(triton.url, "--retry-for", "1")
    wait_until(partial(run.has_come, process, 1), "it writes")
    triton.stop()
    _, said = process.communicate()
    assert process.returncode == 7, said
    assert "no answer from Triton" in said
    run.finish(triton.ready(request.node).url)


def test_bad_items_and_a_full_queue(triton: PlainTriton) -> None:
    """Twelve requests at once into a queue of three; the model names what it refuses."""
    asked = list(TEXTS[:1000])
    asked[7], asked[600] = "BAD", "also BAD"
    with TritonClient(triton.url) as client, pytest.raises(ItemsRejectedError) as caught:
        client.embed("encoder", asked, delivery=Delivery(in_flight=12))
    assert list(caught.value.errors) == [7, 600]
    assert "text_input is bad" in caught.value.errors[7].problem
    results: Any = caught.value.results
    assert [
        one.vector.tolist() for number, one in enumerate(results) if number not in {7, 600}
    ] == [vector(text) for number, text in enumerate(asked) if number not in {7, 600}]


def told(handle: Handle, *arguments: str | Path) -> list[dict[str, Any]]:
    """The lines of a command in the project's folder."""
    done = run_here(*arguments, "--quiet", cwd=handle.project.root)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def tasks(tasks_handle: Handle, tasks_server: Server) -> Handle:
    """A small model of each task, alive, each of several steps."""
    return tasks_handle


@pytest.mark.engine
@pytest.mark.path
def test_embed_through_the_steps(tasks: Handle, tmp_path: Path) -> None:
    """Each text's vector is that of the text alone; what is bad has its reason."""
    reference, given = Reference.of(tasks.project), texts(200)
    lines = [text.encode() for text in given]
    lines[20], lines[60] = b"ab\xff", b"x" * 10_000_000
    file = tmp_path / "texts.txt"
    file.write_bytes(b"\n".join(lines))
    output = tmp_path / "out.jsonl"
    told(tasks, "embed", "embedding", file, "--output", output, "--on-error", "keep")
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["index"] for one in answers] == list(range(200))
    assert answers[20]["error"] == "invalid UTF-8: byte 3 is 0xff"
    assert "has 10000000 characters" in answers[60]["error"]
    for number, text in enumerate(given):
        if number not in {20, 60}:
            np.testing.assert_allclose(
                answers[number]["embedding"], reference.embedding(text), atol=1e-5
            )
            assert answers[number]["num_input_tokens"] == reference.tokens(text)
            full = answers[number]["num_input_tokens"] == MAX_TOKENS
            assert full or not answers[number]["truncated"]
    assert {one.get("truncated") for one in answers} == {True, False, None}
    [short] = told(tasks, "embed", "embedding", "--text", "play", "--dimensions", "4")
    assert len(short["embedding"]) == 4


@pytest.mark.engine
def test_classify_and_rerank_through_the_steps(tasks: Handle, tmp_path: Path) -> None:
    """Labels, entities, scores; documents best first; what is too long is refused on demand."""
    reference, given = Reference.of(tasks.project), texts(30)[1:]
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in given), encoding="utf-8")
    for text, one in zip(given, told(tasks, "classify", "classification", file), strict=True):
        right = reference.scores(text)
        assert [pair["label"] for pair in one["labels"]] == sorted(right, key=lambda x: -right[x])
        assert one["labels"][0]["score"] == pytest.approx(max(right.values()), abs=1e-5)
    [found] = told(tasks, "classify", "token_classification", "--text", "player 日本 x play")
    assert {one["text"] for one in found["entities"]} <= {
        "player 日本 x play"[one["start"] : one["end"]] for one in found["entities"]
    }
    line = {"id": "q1", "query": "player x", "documents": given[:6]}
    (tmp_path / "asked.jsonl").write_text(json.dumps(line), encoding="utf-8")
    [ranked] = told(tasks, "rerank", "rerank", "--jsonl", tmp_path / "asked.jsonl")
    scores = [reference.relevance("player x", text) for text in given[:6]]
    assert [one["index"] for one in ranked["results"]] == sorted(
        range(6), key=lambda number: -scores[number]
    )
    done = run_here(
        *("embed", "embedding", file, "--no-truncate", "--rows", "4"), cwd=tasks.project.root
    )
    assert done.returncode == 2
    assert "tokens, the model reads" in " ".join(done.stderr.split())


@pytest.mark.engine
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("generate", "embedding", "7"), "tritonctl embed embedding FILE"),
        (("chat", "classification"), "tritonctl classify classification FILE"),
        (("embed", "rerank", "--text", "a"), "tritonctl rerank rerank --query TEXT FILE"),
        (("rerank", "embedding", "--query", "a", "--text", "b"), "tritonctl embed embedding FILE"),
    ],
)
def test_what_fits_a_model_is_told(tasks: Handle, words: tuple[str, ...], remedy: str) -> None:
    """Whatever one asks it with; of a server named by its address, too."""
    for where in ((), ("--url", tasks.url)):
        if where and words[0] in {"generate", "chat"}:
            continue
        done = run_here(*words, *where, cwd=tasks.project.root)
        assert done.returncode == 2
        assert remedy in " ".join(done.stderr.split())

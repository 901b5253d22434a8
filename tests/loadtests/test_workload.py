# SPDX-License-Identifier: Apache-2.0
"""What is asked: seeded, by weight, the same in every worker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from loadlib.plan import parse_plan
from loadlib.prompts import LoadPrompt, resize_prompt
from loadlib.workload import PlannedRequest, Workload

COUNT = 400


@pytest.fixture
def mixed(plan: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Two classes with everything drawn."""
    numbered = tmp_path / "numbered.jsonl"
    lines = [json.dumps({"text_input": f"prompt {number}"}) + "\n" for number in range(10)]
    numbered.write_text("".join(lines), encoding="utf-8")
    text = {
        "name": "text",
        "weight": 3,
        "prompts": str(numbered),
        "max_tokens": {"uniform": [1, 9]},
    }
    chat = {
        "name": "chat",
        "prompts": str(numbered),
        "turns": {"uniform": [1, 4]},
        "think_seconds": {"exponential": {"mean": 2}},
        "cancel": {"share": 0.25, "after_tokens": 2},
    }
    arrivals = {"process": "poisson", "rate": 100}
    return plan | {"classes": [text, chat], "arrivals": arrivals, "count": COUNT}


def workload(plan: dict[str, Any]) -> Workload:
    """The workload of a plan."""
    return Workload(parse_plan(plan))


def without_class(requests: Iterable[PlannedRequest]) -> list[tuple[Any, ...]]:
    """To compare: each workload has class objects of its own."""
    return [(r.index, r.at_us, r.request_class.name, _turns(r)) for r in requests]


def _turns(request: PlannedRequest) -> list[tuple[Any, ...]]:
    return [(t.prompt, t.max_tokens, t.cancel, t.think_us) for t in request.turns]


def test_seeded(mixed: dict[str, Any]) -> None:
    """The same seed, the same requests; another seed, others."""
    first = without_class(workload(mixed).planned_requests())
    assert first == without_class(workload(mixed).planned_requests())
    assert first != without_class(workload(mixed | {"seed": 2}).planned_requests())


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_workers_share_it(mixed: dict[str, Any], workers: int) -> None:
    """Together exactly the requests of one worker, each of them once."""
    parts = [list(workload(mixed).planned_requests(worker, workers)) for worker in range(workers)]
    together = sorted((r for part in parts for r in part), key=lambda request: request.index)
    assert without_class(together) == without_class(workload(mixed).planned_requests())
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_workers_share_a_closed_loop(mixed: dict[str, Any]) -> None:
    """The n-th request is the same whoever sends it; `count` ends it; users are shared out."""
    mixed["arrivals"] = {"process": "closed", "concurrency": 8}
    whole = list(workload(mixed).endless_requests())
    parts = [workload(mixed).endless_requests(worker, 3) for worker in range(3)]
    together = sorted((r for part in parts for r in part), key=lambda request: request.index)
    assert len(whole) == COUNT
    assert without_class(together) == without_class(whole)
    closed = parse_plan(mixed).arrivals
    assert [closed.worker_users(worker, 3) for worker in range(3)] == [3, 3, 2]  # type: ignore[union-attr]


def test_a_closed_loop_has_no_end(mixed: dict[str, Any]) -> None:
    """Where a duration ends it."""
    mixed |= {"arrivals": {"process": "closed", "concurrency": 1}}
    mixed |= {"count": None, "duration_seconds": 1}
    assert len(list(islice(workload(mixed).endless_requests(), 1000))) == 1000


def test_weights(mixed: dict[str, Any]) -> None:
    """Three to one, within five standard deviations."""
    drawn = Counter(r.request_class.name for r in workload(mixed).planned_requests())
    assert abs(drawn["text"] - COUNT * 3 / 4) < 5 * (COUNT * 3 / 16) ** 0.5


def test_lengths_turns_and_cancellations(mixed: dict[str, Any]) -> None:
    """Everything drawn lies where it was asked for; the first turn is not thought over."""
    requests = list(workload(mixed).planned_requests())
    texts = [r for r in requests if r.request_class.name == "text"]
    chats = [r for r in requests if r.request_class.name == "chat"]
    assert {r.turns[0].max_tokens for r in texts} == set(range(1, 10))
    assert {len(r.turns) for r in chats} == {1, 2, 3, 4}
    assert all(r.turns[0].think_us == 0 for r in requests)
    assert all(turn.think_us > 0 for r in chats for turn in r.turns[1:])
    turns = [turn for r in chats for turn in r.turns]
    cut = sum(turn.cancel is not None for turn in turns)
    assert abs(cut - len(turns) / 4) < 5 * (len(turns) * 3 / 16) ** 0.5
    assert {r.session is None for r in texts} == {True}
    assert [r.session for r in chats] == [r.index for r in chats]


@pytest.mark.parametrize("order", ["sequential", "shuffled", "random"])
def test_order_of_prompts(mixed: dict[str, Any], order: str) -> None:
    """In order, or each once in every round but in another order, or any."""
    mixed["classes"] = [{**mixed["classes"][0], "order": order}]
    prompts = [r.turns[0].prompt.text for r in workload(mixed).planned_requests()]
    numbers = [int(str(text).split()[1]) for text in prompts]
    rounds = [numbers[start : start + 10] for start in range(0, COUNT, 10)]
    if order == "sequential":
        assert all(one == list(range(10)) for one in rounds)
    elif order == "shuffled":
        assert all(sorted(one) == list(range(10)) for one in rounds)
        assert len(set(map(tuple, rounds))) > 30
    else:
        assert any(sorted(one) != list(range(10)) for one in rounds)
        assert set(numbers) == set(range(10))


def test_more_prompts_change_no_lengths(mixed: dict[str, Any]) -> None:
    """Each question has a random stream of its own."""
    lengths = [r.turns[0].max_tokens for r in workload(mixed).planned_requests()]
    with Path(mixed["classes"][0]["prompts"]).open("a", encoding="utf-8") as file:
        file.write('{"text_input": "one more"}\n')
    assert lengths == [r.turns[0].max_tokens for r in workload(mixed).planned_requests()]


@pytest.mark.parametrize(("words", "text"), [(2, "a b"), (5, "a b c a b")])
def test_input_lengths(words: int, text: str) -> None:
    """Cut, or repeated; of a conversation its last message."""
    assert resize_prompt(LoadPrompt(text="a b c"), words).text == text
    messages = ({"role": "system", "content": "x y z"}, {"role": "user", "content": "a b c"})
    found = resize_prompt(LoadPrompt(messages=messages), words).messages
    assert found == (messages[0], {"role": "user", "content": text})


def test_a_trace_decides(mixed: dict[str, Any], tmp_path: Path) -> None:
    """Class, length and text of its lines; the rest is drawn."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {"at": 0.1, "class": "chat"},
        {"at": 0.2, "class": "text", "max_tokens": 77, "text_input": "so"},
        {"at": 0.3, "class": "text"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    plan = mixed | {"arrivals": {"process": "trace", "file": str(path)}}
    chat, given, drawn = workload(plan).planned_requests()
    assert (chat.request_class.name, chat.at_us) == ("chat", 100_000)
    assert (given.turns[0].prompt.text, given.turns[0].max_tokens) == ("so", 77)
    assert str(drawn.turns[0].prompt.text).startswith("prompt ")
    assert 1 <= (drawn.turns[0].max_tokens or 0) <= 9


def test_drawn_ahead(mixed: dict[str, Any]) -> None:
    """The same requests, however far ahead they are drawn; their times are there at once."""
    whole = list(workload(mixed).planned_requests())
    upcoming = workload(mixed).planned_requests()
    assert list(upcoming.due) == [request.at_us for request in whole]
    found = []
    for position in range(0, COUNT, 3):
        upcoming.draw_ahead(position % 7)
        assert upcoming[position] is upcoming[position]
        found.append(upcoming[position])
    assert without_class(found) == without_class(whole[::3])
    with pytest.raises(IndexError):
        upcoming[0]

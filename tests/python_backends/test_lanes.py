# SPDX-License-Identifier: Apache-2.0
"""Several runs of a graph at a time: who begins when, what Triton keeps, whose answer is whose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorlib.batches import Answer, Arrays, GraphRequest, Padding, RowError
from tensorlib.lanes import parallel_runs, physical_cores
from tensorlib.run_queue import TRITON_DECIDES, QueuedRequest, RunQueue
from textlib.errors import QueueFullError, RequestCancelledError

pytestmark = pytest.mark.timed

MOST, LANES, PATIENCE = 8, 2, 10.0
PADDING = Padding({"input_ids": 7, "attention_mask": 0}, ("tokens",), 10.0)


class Graph:
    """Doubles what it is fed. A run of one length waits for its gate, others do not."""

    def __init__(self, *gates: int, poison: int = -1) -> None:
        self.gates = {length: threading.Event() for length in gates}
        self.begun: list[tuple[int, ...]] = []
        self.most_at_once = 0
        self._under_way = 0
        self._poison = poison
        self._changed = threading.Condition()

    def __call__(self, arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        ids, mask = arrays["input_ids"], arrays["attention_mask"]
        with self._changed:
            self.begun.append(ids.shape)
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            self._changed.notify_all()
        try:
            gate = self.gates.get(ids.shape[1])
            assert gate is None or gate.wait(PATIENCE)
            if (ids == self._poison).any():
                raise ValueError("poisoned")
        finally:
            with self._changed:
                self._under_way -= 1
        every = {"sum": (ids * mask).sum(axis=1, keepdims=True), "tokens": 2 * ids * mask}
        return [every[name] for name in outputs]

    def wait_for(self, *shapes: tuple[int, ...]) -> None:
        """Until these runs, in any order, have begun, and no others."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= len(shapes), PATIENCE)
            assert sorted(self.begun) == sorted(shapes)


def asked(*lengths: int, start: int = 10) -> GraphRequest:
    """One request: a text of each length, padded to the longest."""
    ids = np.full((len(lengths), max(lengths)), 7)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = np.arange(start, start + length) + 1000 * row
        mask[row, :length] = 1
    return GraphRequest({"input_ids": ids, "attention_mask": mask}, ("sum", "tokens"))


class Client(QueuedRequest):
    """Who sent a request, and what came back."""

    def __init__(self, *lengths: int, start: int = 10, gone: bool = False) -> None:
        self.answers: list[Answer] = []
        self.answered = threading.Event()
        request = asked(*lengths, start=start)
        self.sent = request.copy()
        super().__init__(request, self._take, lambda: gone)

    def _take(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.answered.set()

    @property
    def memory(self) -> list[Any]:
        """Of what was sent."""
        return list(self.graph_request.arrays.values())


def assert_own(client: Client) -> None:
    """The one answer is that of the texts that were sent."""
    assert client.answered.wait(PATIENCE)
    [answer] = client.answers
    assert isinstance(answer, dict), answer
    ids, mask = client.sent.arrays["input_ids"], client.sent.arrays["attention_mask"]
    np.testing.assert_array_equal(answer["sum"], (ids * mask).sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(answer["tokens"], 2 * ids * mask)


def started(graph: Graph, bound: int = 0, **settings: Any) -> RunQueue:
    """A queue with two lanes that runs."""
    queue = RunQueue(graph, MOST, bound, PADDING, **{"max_tokens": 64, "lanes": LANES} | settings)
    queue.start()
    return queue


def aside(work: Callable[[], None]) -> threading.Thread:
    """In a thread of its own, as Triton calls execute()."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_short_text_does_not_wait_for_a_long_one() -> None:
    """Which came before it and is under way: it begins at once, and is answered first."""
    graph = Graph(60)
    queue = started(graph)
    long, short = Client(60), Client(5)
    queue.submit([long])  # returns: there is another lane
    queue.submit([short])
    assert_own(short)
    assert not long.answers
    graph.gates[60].set()
    queue.close()
    assert_own(long)


@pytest.mark.parametrize("bound", [0, 16])
def test_triton_hands_over_more_at_once(bound: int) -> None:
    """Also with all lanes taken: the next run is made of what waits here."""
    graph = Graph(60, 61)
    queue = started(graph, bound)
    sent = [Client(60), Client(61), Client(5), Client(6), Client(5)]
    for number, client in enumerate(sent):
        queue.submit([client])
        graph.wait_for(*[(1, 60), (1, 61)][: number + 1])
    graph.gates[61].set()
    for client in sent[1:]:
        assert_own(client)
    assert graph.begun[2:] == [(3, 6)]
    graph.gates[60].set()
    queue.close()
    assert_own(sent[0])


def test_where_triton_decides_it_keeps_what_could_not_begin() -> None:
    """execute() returns when the next one could begin."""
    graph = Graph(60, 61)
    queue = started(graph, TRITON_DECIDES)
    queue.submit([Client(60)])
    execute = aside(lambda: queue.submit([Client(61)]))
    graph.wait_for((1, 60), (1, 61))
    execute.join(0.05)
    assert execute.is_alive()
    graph.gates[61].set()
    execute.join(PATIENCE)
    assert not execute.is_alive()
    graph.gates[60].set()
    queue.close()


def test_where_triton_decides_nobody_waits_here() -> None:
    """A run that ends is not enough, while one of its batch has not begun."""
    graph = Graph(40, 50, 60)
    queue = started(graph, TRITON_DECIDES)
    execute = aside(lambda: queue.submit([Client(60), Client(50), Client(40)]))
    graph.wait_for((1, 60), (1, 50))
    graph.gates[50].set()
    graph.wait_for((1, 60), (1, 50), (1, 40))
    execute.join(0.05)
    assert execute.is_alive()
    graph.gates[40].set()
    execute.join(PATIENCE)
    assert not execute.is_alive()
    graph.gates[60].set()
    queue.close()


def test_two_lanes_answer_one_request_once() -> None:
    """Its texts are on both; the one that ends last answers."""
    graph = Graph(60, 61)
    queue = started(graph)
    both = Client(60, 61, 5)
    execute = aside(lambda: queue.submit([both]))
    graph.wait_for((1, 60), (1, 61))
    graph.gates[60].set()
    graph.wait_for((1, 60), (1, 61), (1, 5))
    assert not both.answers
    graph.gates[61].set()
    assert_own(both)
    execute.join(PATIENCE)
    queue.close()
    assert len(both.answers) == 1


def test_triton_s_memory_is_left_before_execute_returns() -> None:
    """Also of what is under way."""
    graph = Graph(60)
    queue = started(graph)
    client = Client(60)
    arrays = client.memory
    queue.submit([client])
    for array in arrays:
        array[:] = 0
    graph.gates[60].set()
    queue.close()
    assert_own(client)


def test_one_bad_text_fails_alone_with_its_index() -> None:
    """What shares its run on its lane, and what is on the other one, gets its answer."""
    queue = started(Graph(poison=1012))
    bad, beside, other = Client(5, 5), Client(5, start=500), Client(40, start=2000)
    queue.submit([bad, beside, other])
    queue.close()
    [error] = bad.answers
    assert isinstance(error, RowError)
    assert str(error) == "item 1: poisoned"
    assert_own(beside)
    assert_own(other)


def test_who_has_gone_takes_no_lane() -> None:
    """Of texts that waited behind both; the clock is the test's."""
    now = 0.0
    graph = Graph(60, 61)
    queue = started(graph, clock=lambda: now)
    queue.submit([Client(60)])
    execute = aside(lambda: queue.submit([Client(61)]))
    graph.wait_for((1, 60), (1, 61))
    gone, present = Client(5, gone=True), Client(*[30] * (MOST - 1))
    queue.submit([gone, present])  # a full batch: Triton may have more
    now = 1.0
    graph.gates[61].set()
    assert_own(present)
    assert gone.answered.wait(PATIENCE)
    assert isinstance(gone.answers[0], RequestCancelledError)
    assert (1, 5) not in graph.begun
    graph.gates[60].set()
    queue.close()
    execute.join(PATIENCE)


def test_full_is_counted_behind_all_lanes() -> None:
    """A run's rows on each lane, and as many as may wait; the next one is refused at once."""
    graph = Graph(5)
    queue = started(graph, bound=2, max_tokens=0)
    sent = [Client(5) for _ in range(LANES * MOST + 5)]
    queue.submit(sent)
    refused = [client for client in sent if client.answers]
    assert refused == sent[LANES * MOST + 2 :]
    assert all(isinstance(client.answers[0], QueueFullError) for client in refused)
    graph.gates[5].set()
    queue.close()
    assert [len(client.answers) for client in sent] == [1] * len(sent)


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=MOST), min_size=1, max_size=12),
    st.sampled_from([0, 64, TRITON_DECIDES]),
    st.sampled_from([0, 16, 64, 4096]),
    st.integers(2, 4),
)
def test_everyone_gets_their_own(
    requests: list[list[int]], bound: int, tokens: int, lanes: int
) -> None:
    """Once; never more runs at a time than lanes, none larger than its bounds."""
    graph = Graph()
    queue = started(graph, bound, max_tokens=tokens, lanes=lanes)
    clients = [Client(*lengths, start=10 * n) for n, lengths in enumerate(requests)]
    for first in range(0, len(clients), 3):
        queue.submit(clients[first : first + 3])
    queue.close()
    for client in clients:
        assert_own(client)
    assert graph.most_at_once <= lanes
    assert all(rows <= MOST for rows, _ in graph.begun)
    if tokens:
        assert all(rows == 1 or rows * length <= tokens for rows, length in graph.begun)


def groups(*counts: int) -> dict[str, Any]:
    """A model's config with instances on CPUs."""
    return {"instance_group": [{"kind": "KIND_CPU", "count": count} for count in counts]}


@pytest.mark.parametrize(
    ("most", "config", "kind", "runs"),
    [
        (8, groups(1), "CPU", 6),
        (4, groups(1), "CPU", 4),
        (8, groups(2), "CPU", 3),
        (8, groups(4, 8), "CPU", 1),
        (8, groups(1), "GPU", 1),
    ],
)
def test_a_run_for_each_core(
    most: int, config: dict[str, Any], kind: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that the model's instances share; on a GPU one."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    assert parallel_runs(most, config, kind) == runs


@pytest.mark.parametrize(
    ("siblings", "cores"),
    [(("0,4", "1,5"), ((0, 4), (1, 5))), ((), ((0,), (1,), (4,), (5,)))],
)
def test_logical_cores_of_one_core_are_one(
    siblings: Sequence[str],
    cores: Sequence[Sequence[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that this process may use; without /sys each is one."""
    for logical, line in zip((0, 1, 4, 5), (*siblings, *siblings), strict=False):
        folder = tmp_path / f"cpu{logical}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{line}\n", encoding="utf-8")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4, 5})
    assert physical_cores(tmp_path) == cores

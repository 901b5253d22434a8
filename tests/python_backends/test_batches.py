# SPDX-License-Identifier: Apache-2.0
"""Requests that share a run of a graph: who does, who waits, who gets what, who is to blame."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorlib.batches import Answer, Arrays, GraphRequest, Padding, run_batch
from tensorlib.graph_requests import UnbatchedRequests, run_unbatched
from tensorlib.run_queue import TRITON_DECIDES, QueuedRequest, RunQueue
from textlib.errors import QueueFullError, RequestCancelledError

pytestmark = pytest.mark.timed

MOST = 8
PATIENCE = 10.0


def asked(
    rows: int, length: int = 2, start: int = 0, outputs: tuple[str, ...] = ("y",)
) -> GraphRequest:
    array = np.arange(start, start + rows * length, dtype=np.float32).reshape(rows, length)
    return GraphRequest({"x": array}, outputs)


class Client(QueuedRequest):
    """Who sent a request, and what came back."""

    def __init__(self, request: GraphRequest, *, gone: bool = False) -> None:
        self.answers: list[Answer] = []
        super().__init__(request, self.answers.append, lambda: gone)


def clients(*requests: GraphRequest) -> list[Client]:
    return [Client(request) for request in requests]


class Doubling:
    """A graph with two outputs; keeps what it was fed and asked. Closed, it does not answer."""

    def __init__(self, poison: float | None = None) -> None:
        self.runs: list[tuple[tuple[int, ...], tuple[str, ...]]] = []
        self.fed: list[Any] = []
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.opened.set()
        self._poison = poison

    def __call__(self, arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        x = arrays["x"]
        self.runs.append((x.shape, tuple(outputs)))
        self.fed.append(x)
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        if self._poison is not None and (x == self._poison).any():
            raise RuntimeError("poisoned")
        every = {"y": 2 * x, "total": x.sum(axis=1, keepdims=True)}
        return [every[name] for name in outputs]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [shape for shape, _ in self.runs]


@given(
    st.lists(st.lists(st.tuples(st.integers(1, MOST), st.integers(1, 3)), max_size=5), max_size=5),
    st.sampled_from([0, TRITON_DECIDES]),
)
def test_everyone_gets_the_rows_they_sent(
    executions: list[list[tuple[int, int]]], bound: int
) -> None:
    graph = Doubling()
    queue = RunQueue(graph, MOST, bound)
    queue.start()
    everyone = []
    for number, sizes in enumerate(executions):
        requests = [
            asked(r, length, 1000 * number + 100 * n) for n, (r, length) in enumerate(sizes)
        ]
        sent = [(client, client.graph_request) for client in clients(*requests)]
        queue.submit([client for client, _ in sent])
        everyone += sent
    queue.close()
    for client, request in everyone:
        [answer] = client.answers
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], 2 * request.arrays["x"])
    assert all(shape[0] <= MOST for shape in graph.shapes)


def test_what_triton_could_not_fill_is_answered_at_once() -> None:
    """In execute() itself, without a copy and without the thread."""
    graph = Doubling()
    [client] = clients(asked(5))
    array = client.graph_request.arrays["x"]
    RunQueue(graph, MOST, 16).submit([client])
    assert len(client.answers) == 1
    assert graph.fed[0] is array


def test_a_full_batch_is_left_to_the_thread() -> None:
    """More may wait in Triton; its tensors are gone when execute() returns."""
    graph = Doubling()
    queue = RunQueue(graph, MOST, 16)
    sent = clients(asked(5), asked(3))
    arrays = [client.graph_request.arrays["x"] for client in sent]
    queue.submit(sent)
    assert [client.answers for client in sent] == [[], []]
    assert not any(c.graph_request.arrays["x"] is a for c, a in zip(sent, arrays, strict=True))
    queue.start()
    queue.close()
    assert [len(client.answers) for client in sent] == [1, 1]
    assert graph.shapes == [(8, 2)]


def test_a_crowd_is_not_waited_for() -> None:
    """A request behind half of the queue learns at once whether the queue is full."""
    graph = Doubling()
    queue = RunQueue(graph, MOST, 16)
    queue.submit(clients(asked(8)))
    queue.submit(clients(*[asked(1)] * 8))
    [late] = clients(asked(1))
    array = late.graph_request.arrays["x"]
    queue.submit([late])
    assert (graph.runs, late.answers) == ([], [])
    assert late.graph_request.arrays["x"] is not array
    queue.start()
    queue.close()
    assert graph.shapes == [(8, 2), (8, 2), (1, 2)]


def test_one_run_for_each_batch_of_triton_s() -> None:
    """What does not fit into it is left, in memory of its own; the oldest goes first."""
    graph = Doubling()
    queue = RunQueue(graph, MOST, 16)
    sent = clients(asked(2, 2), asked(1, 3), asked(3, 2), asked(1, 3))
    arrays = [client.graph_request.arrays["x"] for client in sent]
    queue.submit(sent)
    assert [len(client.answers) for client in sent] == [1, 0, 1, 0]
    left = [c.graph_request.arrays["x"] is not a for c, a in zip(sent, arrays, strict=True)]
    assert left == [False, True, False, True]
    queue.start()
    queue.close()
    assert graph.shapes == [(5, 2), (2, 3)]


def test_no_run_is_larger_than_the_engine() -> None:
    graph = Doubling()
    queue = RunQueue(graph, MOST, 16)
    queue.submit(clients(asked(3), asked(4), asked(2), asked(8), asked(1)))
    queue.start()
    queue.close()
    assert graph.shapes == [(7, 2), (2, 2), (8, 2), (1, 2)]


def test_other_types_are_other_shapes() -> None:
    graph = Doubling()
    halves = GraphRequest({"x": np.ones((1, 2), dtype=np.float16)}, ("y",))
    RunQueue(graph, MOST, TRITON_DECIDES).submit(clients(asked(1), halves))
    assert graph.shapes == [(1, 2), (1, 2)]


def test_where_triton_decides_nobody_waits_here() -> None:
    graph = Doubling()
    queue = RunQueue(graph, MOST, TRITON_DECIDES)
    sent = clients(asked(8), asked(1, 3), asked(2))
    queue.submit(sent)
    assert [len(client.answers) for client in sent] == [1, 1, 1]


@pytest.mark.parametrize(("bound", "waiting"), [(1, 1), (3, 3), (0, 40)])
def test_one_more_than_may_wait_is_refused_at_once(bound: int, waiting: int) -> None:
    """Also while a run goes on; 0 is no bound."""
    graph = Doubling()
    graph.opened.clear()
    queue = RunQueue(graph, 1, bound)
    queue.start()
    queue.submit(clients(asked(1)))
    assert graph.entered.wait(PATIENCE)
    sent = clients(*[asked(1)] * 40)
    for client in sent:
        queue.submit([client])
    refused = [client for client in sent if client.answers]
    assert refused == sent[waiting:]
    for client in refused:
        [answer] = client.answers
        assert isinstance(answer, QueueFullError)
        assert str(answer).startswith(f"the engine's queue is full: {bound} requests wait")
    graph.opened.set()
    queue.close()
    assert [len(client.answers) for client in sent] == [1] * 40


def test_an_idle_engine_takes_a_run_and_as_many_as_may_wait() -> None:
    graph = Doubling()
    queue = RunQueue(graph, MOST, 2)
    sent = clients(*[asked(1)] * 12)
    queue.submit(sent)
    assert [bool(client.answers) for client in sent] == [False] * 10 + [True] * 2
    queue.start()
    queue.close()
    assert graph.shapes == [(8, 2), (2, 2)]


def test_who_has_gone_is_left_out() -> None:
    """Triton is asked only of those who have waited for a while."""
    now = 0.0
    graph = Doubling()
    queue = RunQueue(graph, 2, 8, clock=lambda: now)
    old = [Client(asked(1), gone=True), Client(asked(1))]
    queue.submit(old)
    now = 1.0
    young = [Client(asked(1), gone=True), Client(asked(1))]
    queue.submit(young)
    queue.start()
    queue.close()
    assert isinstance(old[0].answers[0], RequestCancelledError)
    assert [isinstance(client.answers[0], dict) for client in (old[1], *young)] == [True] * 3
    assert graph.shapes == [(1, 2), (2, 2)]


def unreachable(*_: object) -> NoReturn:
    raise RuntimeError("the server is gone")


@pytest.mark.parametrize("bound", [4, TRITON_DECIDES])
def test_an_answer_that_cannot_be_sent_harms_nobody_else(bound: int) -> None:
    """Neither those of the same run nor those of the next one."""
    now = 0.0
    queue = RunQueue(Doubling(), 2, bound, clock=lambda: now)
    broken = QueuedRequest(asked(1), unreachable, unreachable)
    [beside, later] = clients(asked(1), asked(2))
    queue.submit([broken, beside])
    now = 1.0
    queue.start()
    queue.submit([later])
    queue.close()
    assert [len(client.answers) for client in (beside, later)] == [1, 1]


def test_only_outputs_that_somebody_wants_are_computed() -> None:
    graph = Doubling()
    answers = run_batch([asked(1), asked(1, outputs=("total",))], graph, Padding())
    assert [sorted(answer) for answer in answers if isinstance(answer, dict)] == [["y"], ["total"]]
    assert graph.runs == [((2, 2), ("y", "total"))]


def test_a_bad_request_fails_alone() -> None:
    answers = run_batch([asked(1), asked(1, start=50), asked(1)], Doubling(poison=50.0), Padding())
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    assert str(answers[1]) == "poisoned"


def test_an_output_without_a_row_for_each_row_is_an_error() -> None:
    def one_row(arrays: Arrays, _: Sequence[str]) -> Sequence[Any]:
        return [np.zeros((1, 2))]

    answers = run_batch([asked(2), asked(1)], one_row, Padding())
    assert str(answers[0]) == "output y has 1 rows for a batch of 2"
    assert isinstance(answers[1], dict)


def text(rows: int, length: int, start: int = 1) -> GraphRequest:
    """Ids and a mask; the graph below doubles ids and sums what the mask leaves."""
    ids = np.arange(start, start + rows * length).reshape(rows, length)
    return GraphRequest({"ids": ids, "mask": np.ones_like(ids)}, ("states", "sum"))


class Encoder:
    """Honours its mask; keeps the ids that it was fed."""

    def __init__(self) -> None:
        self.fed: list[Any] = []

    def __call__(self, arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        ids, mask = arrays["ids"], arrays["mask"]
        self.fed.append(ids)
        every = {"states": 2 * ids, "sum": (ids * mask).sum(axis=1)}
        return [every[name] for name in outputs]


def padding(tokens: float) -> Padding:
    return Padding({"ids": 99, "mask": 0}, ("states",), tokens)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=12),
    st.sampled_from([0.0, 4.0, 1000.0]),
)
def test_texts_of_any_length_get_their_own_answers(
    sizes: list[tuple[int, int]], tokens: float
) -> None:
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, TRITON_DECIDES, padding(tokens))
    sent = [
        (client, client.graph_request.arrays["ids"])
        for client in clients(*[text(*s) for s in sizes])
    ]
    queue.submit([client for client, _ in sent])
    for client, ids in sent:
        [answer] = client.answers
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["states"], 2 * ids)
        np.testing.assert_array_equal(answer["sum"], ids.sum(axis=1))
    assert all(len(ids) <= MOST for ids in encoder.fed)


@pytest.mark.parametrize(
    ("lengths", "tokens", "runs"),
    [
        ((5, 5, 7), 0, [(2, 5), (1, 7)]),
        ((5, 5, 7), 3, [(2, 5), (1, 7)]),  # two rows filled up by two tokens each
        ((5, 5, 7), 4, [(3, 7)]),
        ((7, 5, 5), 3, [(1, 7), (2, 5)]),
        ((7, 5, 5), 4, [(3, 7)]),
        ((7, 5, 5, 6), 2, [(2, 7), (2, 5)]),  # the nearest length first
        ((4, 40, 4, 40), 35, [(2, 4), (2, 40)]),
    ],
)
def test_padding_is_cheaper_than_a_run_or_is_left(
    lengths: Sequence[int], tokens: float, runs: list[tuple[int, int]]
) -> None:
    """The oldest goes first; a group of one length pays for all of its rows."""
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, TRITON_DECIDES, padding(tokens))
    queue.submit(clients(*[text(1, length) for length in lengths]))
    assert [ids.shape for ids in encoder.fed] == runs


def test_rows_are_filled_up_on_the_right() -> None:
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, TRITON_DECIDES, padding(10))
    queue.submit(clients(text(1, 3, start=5), text(1, 1, start=3)))
    assert encoder.fed[0].tolist() == [[5, 6, 7], [3, 99, 99]]


def test_a_request_of_two_lengths_is_left_to_the_graph() -> None:
    """It runs by itself, and its client reads what the graph says of it."""
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, TRITON_DECIDES, padding(1000))
    odd = GraphRequest({"ids": np.ones((1, 3)), "mask": np.ones((1, 2))}, ("sum",))
    sent = clients(text(1, 3), odd, text(1, 2))
    queue.submit(sent)
    assert [isinstance(client.answers[0], dict) for client in sent] == [True, False, True]


@pytest.mark.parametrize("shape", [(1,), (5,), (1, 3), (4, 3), (2, 1, 3, 2)])
def test_a_graph_without_a_batch_runs_once_for_each_request(shape: tuple[int, ...]) -> None:
    """It sees the request's own shapes, and a sum without dimensions is answered as [1]."""

    def graph(arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        assert arrays["x"].shape == shape
        made = {"y": 2 * arrays["x"], "total": np.asarray(arrays["x"].sum())}
        return [made[name] for name in outputs]

    sent = [np.full(shape, float(n)) for n in range(3)]
    reader = UnbatchedRequests(0)
    reads: list[Any] = list(reader.read([({"x": x}, ("y", "total")) for x in sent]))
    queue = RunQueue(lambda arrays, names: run_unbatched(graph, arrays, names), 1, 0)
    queue.start()
    waiting = [Client(request) for request, _ in reads]
    queue.submit(waiting)
    queue.close()
    for x, client, (_, finish) in zip(sent, waiting, reads, strict=True):
        [answer] = client.answers
        outputs = finish(answer)
        np.testing.assert_array_equal(outputs["y"], 2 * x)
        assert outputs["total"].shape == (1,)
        assert outputs["total"] == x.sum()

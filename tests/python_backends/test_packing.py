# SPDX-License-Identifier: Apache-2.0
"""Runs bounded by their tokens: who goes first, who shares it, and that everyone gets their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorlib.batches import Answer, Arrays, GraphRequest, Padding, RowError
from tensorlib.packing import default_tokens, next_row, rows_for_run
from tensorlib.run_queue import TRITON_DECIDES, QueuedRequest, RunQueue

MOST = 8
RUN = 10.0


@dataclass(eq=False)
class Text:
    """One that waits."""

    length: int
    arrived: float = 0.0


def texts(*lengths: int) -> list[Text]:
    """In the order of their coming, all at one time."""
    return [Text(length) for length in lengths]


def cost(lengths: Sequence[int], runs: Sequence[Sequence[int]]) -> float:
    """Of these runs over these lengths."""
    return sum(RUN + len(run) * max(lengths[index] for index in run) for run in runs)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.data(),
    st.integers(1, 12),
    st.integers(20, 400),
)
def test_a_run_keeps_its_bounds(
    lengths: list[int], data: st.DataObject, most_rows: int, most_tokens: int
) -> None:
    """It holds the first row, and is within both bounds unless that is alone."""
    waiting = texts(*lengths)
    first = data.draw(st.sampled_from(waiting))
    run = rows_for_run(waiting, first, most_rows, most_tokens, RUN)
    assert first in run
    assert len({id(one) for one in run}) == len(run) <= most_rows
    assert len(run) == 1 or len(run) * max(one.length for one in run) <= most_tokens


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7))
def test_the_runs_cost_least(lengths: list[int]) -> None:
    """Taken until nobody waits, they cost no more than any other way to share runs by length."""
    waiting, total = texts(*lengths), 0.0
    while waiting:
        run = rows_for_run(waiting, waiting[0], MOST, 1000, RUN)
        total += RUN + len(run) * max(one.length for one in run)
        waiting = [one for one in waiting if one not in run]
    ordered = sorted(range(len(lengths)), key=lengths.__getitem__)
    ways = (
        [ordered[a:b] for a, b in zip([0, *cuts], [*cuts, len(ordered)], strict=True)]
        for cuts in _cuts(len(ordered))
    )
    assert total == min(cost(lengths, way) for way in ways)


def _cuts(count: int) -> list[list[int]]:
    """Every way to cut a row of so many."""
    return [
        [at for at in range(1, count) if mask >> (at - 1) & 1] for mask in range(2 ** (count - 1))
    ]


def test_no_short_text_is_padded_to_a_long_one() -> None:
    """Whoever comes first."""
    waiting = texts(8, 8000, 9, 7, 10)
    assert [one.length for one in rows_for_run(waiting, waiting[0], MOST, 16000, RUN)] == [
        7,
        8,
        9,
        10,
    ]
    assert [one.length for one in rows_for_run(waiting, waiting[1], MOST, 16000, RUN)] == [8000]


@pytest.mark.parametrize(("most_rows", "most_tokens"), [(2, 1000), (8, 29)])
def test_of_one_length_the_oldest_share_a_run(most_rows: int, most_tokens: int) -> None:
    """As many as it may hold."""
    waiting = [Text(10, at) for at in (3.0, 1.0, 4.0, 2.0)]
    run = rows_for_run(waiting, waiting[1], most_rows, most_tokens, RUN)
    assert [one.arrived for one in run] == [1.0, 2.0]


def test_a_run_is_never_free() -> None:
    """Measured on a busy machine it may seem so: equal lengths share one all the same."""
    waiting = texts(7, 7, 7, 30)
    assert [one.length for one in rows_for_run(waiting, waiting[0], MOST, 1000, 0.0)] == [7, 7, 7]


def test_up_to_512_tokens_the_oldest_goes_first() -> None:
    """Their cost is not worth an order of its own."""
    old, young = Text(500, 0.0), Text(5, 0.1)
    assert next_row([young, old], 1.0) is old


def test_a_long_text_waits_for_short_ones_and_gets_its_turn() -> None:
    """In proportion to its length: 16 times 512 waits 16 times as long."""
    long, short = Text(16 * 512, 0.0), Text(8, 0.9)
    assert next_row([long, short], 1.0) is short
    assert next_row([long, Text(8, 0.97)], 1.0) is long


@pytest.mark.parametrize(("run_tokens", "tokens"), [(0.0, 512), (10.0, 512), (100.0, 3200)])
def test_default_bound(run_tokens: float, tokens: int) -> None:
    """Where a run costs as much as a hundred tokens, it should hold thousands."""
    assert default_tokens(run_tokens) == tokens


class Encoder:
    """Sums what the mask leaves, and gives each token back; refuses one id."""

    def __init__(self, poison: int = -1) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self._poison = poison

    def __call__(self, arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        ids, mask = arrays["input_ids"], arrays["attention_mask"]
        if (ids == self._poison).any():
            raise ValueError("poisoned")
        self.shapes.append(ids.shape)
        every = {"sum": (ids * mask).sum(axis=1, keepdims=True), "tokens": 2 * ids * mask}
        return [every[name] for name in outputs]


PADDING = Padding({"input_ids": 7, "attention_mask": 0}, ("tokens",), RUN)


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

    def __init__(self, request: GraphRequest, *, gone: bool = False) -> None:
        self.sent = request
        self.answers: list[Answer] = []
        super().__init__(request, self.answers.append, lambda: gone)


def assert_own(client: Client) -> None:
    """The answer is that of the texts that were sent."""
    [answer] = client.answers
    assert isinstance(answer, dict), answer
    ids, mask = client.sent.arrays["input_ids"], client.sent.arrays["attention_mask"]
    np.testing.assert_array_equal(answer["sum"], (ids * mask).sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(answer["tokens"], 2 * ids * mask)


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=MOST), min_size=1, max_size=8),
    st.sampled_from([0, TRITON_DECIDES]),
    st.sampled_from([16, 64, 4096]),
)
def test_texts_of_a_request_come_back_together(
    requests: list[list[int]], bound: int, tokens: int
) -> None:
    """Whichever runs they were in; no run is larger than its bounds."""
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, bound, PADDING, max_tokens=tokens)
    queue.start()
    clients = [
        Client(asked(*lengths, start=10 * number)) for number, lengths in enumerate(requests)
    ]
    for first in range(0, len(clients), 3):
        queue.submit(clients[first : first + 3])
    queue.close()
    for client in clients:
        assert_own(client)
    assert all(rows <= MOST for rows, _ in encoder.shapes)
    assert all(rows == 1 or rows * length <= tokens for rows, length in encoder.shapes)


def test_a_batch_of_mixed_lengths_is_no_batch_of_the_longest() -> None:
    """A request's texts are computed with those of their length, across requests."""
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, TRITON_DECIDES, PADDING, max_tokens=512)
    clients = [Client(asked(8, 200)), Client(asked(8, 201, 9))]
    queue.submit(clients)
    for client in clients:
        assert_own(client)
    assert sorted(encoder.shapes) == [(2, 201), (3, 9)]


def test_one_bad_text_fails_its_request_with_its_index() -> None:
    """Others of the same run get their answers."""
    queue = RunQueue(Encoder(poison=1012), MOST, TRITON_DECIDES, PADDING, max_tokens=512)
    bad, good = Client(asked(5, 5)), Client(asked(5, start=500))
    queue.submit([bad, good])
    [error] = bad.answers
    assert isinstance(error, RowError)
    assert str(error) == "item 1: poisoned"
    assert_own(good)


def test_texts_in_memory_of_triton_s_are_copied_before_it_is_gone() -> None:
    """Of a request of which one text has run, the other one."""
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, 16, PADDING, max_tokens=100)
    request = asked(5, 90)
    kept = {name: array.copy() for name, array in request.arrays.items()}
    client = Client(request)
    queue.submit([client])
    assert not client.answers
    for array in request.arrays.values():
        array[:] = 0
    client.sent = GraphRequest(kept, request.outputs)
    queue.start()
    queue.close()
    assert_own(client)


def test_a_late_long_text_delays_short_ones_by_one_run_at_most() -> None:
    """Five of 8,192 tokens wait already; the short one that comes goes before all but one."""
    now = 0.0
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, 0, PADDING, max_tokens=8192, clock=lambda: now)
    long = [Client(asked(8192)) for _ in range(5)]
    queue.submit(long)  # the first of them runs
    now = 5.0
    short = Client(asked(6))
    queue.submit([short])
    assert len(encoder.shapes) == 2
    now = 5.4  # a tenth of a long one's share of its waiting time
    queue.submit([])
    assert_own(short)
    queue.start()
    queue.close()
    assert [len(client.answers) for client in long] == [1] * 5


def test_what_has_no_mask_is_joined_by_its_shape() -> None:
    """Images, and texts that padding would change: a bound of tokens is not for them."""
    shapes: list[tuple[int, ...]] = []

    def graph(arrays: Arrays, _: Sequence[str]) -> Sequence[Any]:
        shapes.append(arrays["pixel_values"].shape)
        return [arrays["pixel_values"].sum(axis=(1, 2))]

    queue = RunQueue(graph, MOST, TRITON_DECIDES, Padding(), max_tokens=512)
    images = [GraphRequest({"pixel_values": np.ones((rows, 4, 4))}, ("sum",)) for rows in (2, 3, 1)]
    queue.submit([Client(one) for one in images])
    assert shapes == [(6, 4, 4)]


def test_a_mask_with_gaps_is_left_to_the_graph() -> None:
    """The request runs whole and by itself."""
    encoder = Encoder()
    queue = RunQueue(encoder, MOST, TRITON_DECIDES, PADDING, max_tokens=512)
    odd = asked(5, 5)
    odd.arrays["attention_mask"][0, 2] = 0
    clients = [Client(odd), Client(asked(5))]
    queue.submit(clients)
    for client in clients:
        assert_own(client)
    assert sorted(encoder.shapes) == [(1, 5), (2, 5)]

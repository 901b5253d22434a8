# SPDX-License-Identifier: Apache-2.0
"""Requests that share a run of a graph: which do, who gets what back, who is to blame."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorlib.batches import Arrays, Asked, answer_all, batches

MOST = 8


def asked(rows: int, length: int = 2, start: int = 0, outputs: tuple[str, ...] = ("y",)) -> Asked:
    array = np.arange(start, start + rows * length, dtype=np.float32).reshape(rows, length)
    return Asked({"x": array}, outputs)


class Doubling:
    """A graph with two outputs; keeps what it was fed and asked."""

    def __init__(self, poison: float | None = None) -> None:
        self.runs: list[tuple[tuple[int, ...], tuple[str, ...]]] = []
        self._poison = poison

    def __call__(self, arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        x = arrays["x"]
        self.runs.append((x.shape, tuple(outputs)))
        if self._poison is not None and (x == self._poison).any():
            raise RuntimeError("poisoned")
        every = {"y": 2 * x, "total": x.sum(axis=1, keepdims=True)}
        return [every[name] for name in outputs]


@given(st.lists(st.tuples(st.integers(1, MOST), st.integers(1, 3)), max_size=12))
def test_everyone_gets_the_rows_they_sent(sizes: list[tuple[int, int]]) -> None:
    requests = [asked(rows, length, 100 * n) for n, (rows, length) in enumerate(sizes)]
    graph = Doubling()
    for request, answer in zip(requests, answer_all(requests, graph, MOST), strict=True):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], 2 * request.arrays["x"])
    assert all(shape[0] <= MOST for shape, _ in graph.runs)


def test_equal_shapes_share_a_run_whatever_lies_between() -> None:
    requests = [asked(1, 2), asked(1, 3), asked(2, 2), asked(1, 3)]
    assert batches(requests, MOST) == [[0, 2], [1, 3]]


def test_no_run_is_larger_than_the_engine() -> None:
    requests = [asked(3), asked(4), asked(2), asked(8), asked(1)]
    assert batches(requests, MOST) == [[0, 1], [2], [3], [4]]


def test_other_types_are_other_shapes() -> None:
    halves = Asked({"x": np.ones((1, 2), dtype=np.float16)}, ("y",))
    assert batches([asked(1), halves], MOST) == [[0], [1]]


def test_only_outputs_that_somebody_wants_are_computed() -> None:
    graph = Doubling()
    answers = answer_all([asked(1), asked(1, outputs=("total",)), asked(1, 3)], graph, MOST)
    assert [sorted(answer) for answer in answers if isinstance(answer, dict)] == [
        ["y"],
        ["total"],
        ["y"],
    ]
    assert graph.runs == [((2, 2), ("y", "total")), ((1, 3), ("y",))]


def test_a_bad_request_fails_alone() -> None:
    answers = answer_all([asked(1), asked(1, start=50), asked(1)], Doubling(poison=50.0), MOST)
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    assert str(answers[1]) == "poisoned"


def test_an_output_without_a_row_for_each_row_is_an_error() -> None:
    answers = answer_all([asked(2), asked(1)], lambda *_: [np.zeros((1, 2))], MOST)
    assert str(answers[0]) == "output y has 1 rows for a batch of 2"
    assert isinstance(answers[1], dict)


@pytest.mark.parametrize("requests", [[], [asked(5)]])
def test_no_copies_where_there_is_nothing_to_join(requests: list[Asked]) -> None:
    seen: list[Any] = []

    def run(arrays: Arrays, outputs: Sequence[str]) -> Sequence[Any]:
        seen.append(arrays["x"])
        return [arrays["x"]]

    answer_all(requests, run, MOST)
    assert all(a is r.arrays["x"] for a, r in zip(seen, requests, strict=True))

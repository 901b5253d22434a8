# SPDX-License-Identifier: Apache-2.0
"""Texts of different lengths in one run: only where a graph's answers stay as they are."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.builders.conftest import modules_of

Feed = dict[str, Any]
Graph = Callable[[Feed], Sequence[Any]]
SECONDS_OF_A_RUN, SECONDS_OF_A_TOKEN = 0.02, 0.0002


@pytest.fixture(scope="module")
def builder() -> Iterator[SimpleNamespace]:
    with modules_of("onnxruntime", ("samples", "source", "options")) as modules:
        modules.padding = importlib.import_module("taskproof.padding")
        yield modules


def honest(feed: Feed) -> Sequence[Any]:
    """States for each token, and their sum over what the mask leaves."""
    ids, mask = (feed[name].astype(np.float32) for name in ("input_ids", "attention_mask"))
    states = np.stack([ids + 1, ids - 1], axis=2)
    return [states, (states * mask[..., None]).sum(axis=1)]


def careless(feed: Feed) -> Sequence[Any]:
    """The same, but for a sum over padding."""
    states, _ = honest(feed)
    return [states, states.sum(axis=1)]


def padding_of(
    builder: SimpleNamespace, graph: Graph, *, engine: Graph | None = None, **changes: Any
) -> dict[str, Any] | None:
    from_graph = builder.samples.OnnxTensor
    names = changes.pop("inputs", ("input_ids", "attention_mask", "token_type_ids"))
    inputs = [from_graph(name, "INT64", ("batch", "sequence")) for name in names]
    outputs = [from_graph(name, "FLOAT", ("batch", None, 2)) for name in ("states", "sum")]
    settings = {"pad_id": 7, "max_length": 64} | changes
    found: dict[str, Any] | None = builder.padding.measure_padding(
        inputs, outputs, source=graph, engine=engine or graph, **settings
    )
    return found


def test_pad_values_and_outputs_by_token(builder: SimpleNamespace) -> None:
    padding = padding_of(builder, honest)
    assert padding is not None
    assert padding["inputs"] == {"input_ids": 7, "attention_mask": 0, "token_type_ids": 0}
    assert padding["outputs"] == ["states"]


@pytest.mark.parametrize(
    ("graph", "changes"),
    [
        (careless, {}),
        (honest, {"inputs": ("input_ids",)}),
        (honest, {"max_length": 8}),
    ],
    ids=["the mask is ignored", "no mask", "too short to try"],
)
def test_no_padding(builder: SimpleNamespace, graph: Graph, changes: dict[str, Any]) -> None:
    assert padding_of(builder, graph, **changes) is None


def test_a_run_is_worth_tokens(builder: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is the graph's: so much a run, so much a token, and at times what others cost it."""
    now, others = 0.0, itertools.cycle([SECONDS_OF_A_RUN, 0.0, 0.0])

    def engine(feed: Feed) -> Sequence[Any]:
        nonlocal now
        now += SECONDS_OF_A_RUN + SECONDS_OF_A_TOKEN * feed["input_ids"].size
        now += next(others)
        return honest(feed)

    monkeypatch.setattr(time, "process_time", lambda: now)
    padding = padding_of(builder, honest, engine=engine)
    assert padding is not None
    assert padding["run_tokens"] == pytest.approx(SECONDS_OF_A_RUN / SECONDS_OF_A_TOKEN)

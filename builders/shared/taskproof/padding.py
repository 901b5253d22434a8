# SPDX-License-Identifier: Apache-2.0
"""Measures whether texts of different lengths may share a run, and when it pays. Needs numpy.

Padded texts need one run instead of several, but the run computes the padding too. Both costs are
in tokens: on this machine a run costs as much as `run_tokens` tokens of padding.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from buildlib.program import print_line
from onnxlib.graph import OnnxTensor
from taskproof.feeds import Feed, text_feeds

_MASK = "attention_mask"
_SEED = 1234
# Share of the source's largest value that precisions.py allows between fp32 graphs.
_TOLERANCE = 0.0001
_LENGTHS = (5, 12, 9)
_ROWS = 4
_TIMED_LENGTH = 32
_TIMED_RUNS = 15

TensorGraph = Callable[[Feed], Sequence[Any]]


def measure_padding(
    inputs: Sequence[OnnxTensor],
    outputs: Sequence[OnnxTensor],
    *,
    source: TensorGraph,
    engine: TensorGraph,
    pad_id: int,
    max_length: int,
) -> dict[str, Any] | None:
    """Return the `padding` of the result's `runtime`, or None if padding changes the answers.

    `source` decides whether padding changes answers. `engine` runs in one thread and is timed.
    Keys of the result: `inputs`, the pad value by input; `outputs`, the outputs with a value per
    token, which serving cuts to the length of a request; `run_tokens`, the tokens of padding that
    cost as much as a run.
    """
    if _MASK not in {tensor.name for tensor in inputs} or max_length < max(_LENGTHS):
        return None
    by_token = _token_outputs(inputs, outputs, source, pad_id)
    if by_token is None:
        print_line("texts of different lengths run alone: padding changes this graph's answers")
        return None
    tokens = _measure_run_tokens(inputs, engine, min(max_length, _TIMED_LENGTH), pad_id)
    print_line(
        f"texts of different lengths share a run where that pads fewer than {tokens:.0f} tokens"
    )
    pads = {tensor.name: pad_id if tensor.name == "input_ids" else 0 for tensor in inputs}
    return {"inputs": pads, "outputs": by_token, "run_tokens": round(tokens, 1)}


def _token_outputs(
    inputs: Sequence[OnnxTensor], outputs: Sequence[OnnxTensor], graph: TensorGraph, pad_id: int
) -> list[str] | None:
    """Return the outputs with a value per token, or None if padding changes any answer."""
    random = np.random.default_rng(_SEED)
    # Ids 0 and 1 are in every vocabulary. An ONNX file does not state its size.
    rows = [random.integers(0, 2, length).tolist() for length in _LENGTHS]
    [batch] = text_feeds(rows, inputs, pad_id=pad_id, batch=len(rows))
    batch_outputs = graph(batch)
    by_token = [
        tensor.name
        for tensor, array in zip(outputs, batch_outputs, strict=True)
        if array.ndim > 1 and array.shape[1] == max(_LENGTHS) and not _has_fixed_length(tensor)
    ]
    for at, feed in enumerate(text_feeds(rows, inputs, pad_id=pad_id, batch=1)):
        for tensor, single, padded in zip(outputs, graph(feed), batch_outputs, strict=True):
            row = padded[at : at + 1]
            if tensor.name in by_token:
                row = row[:, : _LENGTHS[at]]
            if single.shape != row.shape or not _is_close(single, row):
                return None
    return by_token


def _has_fixed_length(tensor: OnnxTensor) -> bool:
    """Whether the second dimension is fixed: its size equals the number of tokens by chance."""
    return isinstance((tensor.shape or ())[1], int)


def _is_close(single: Any, padded: Any) -> bool:
    if single.dtype.kind not in "f":
        return bool((single == padded).all())
    limit = _TOLERANCE * np.abs(single).max(initial=0.0)
    return bool(np.abs(single - padded).max(initial=0.0) <= limit)


def _measure_run_tokens(
    inputs: Sequence[OnnxTensor], graph: TensorGraph, length: int, pad_id: int
) -> float:
    """Return the cost of a run without its rows, in tokens of a row.

    Sizes alternate, and the fastest run of each counts: other load only makes runs slower.
    """
    feeds = [
        text_feeds([[0] * length] * rows, inputs, pad_id=pad_id, batch=rows)[0]
        for rows in (1, _ROWS)
    ]
    for feed in feeds:
        graph(feed)
    pairs = [[_seconds(graph, feed) for feed in feeds] for _ in range(_TIMED_RUNS)]
    single_seconds, batch_seconds = map(min, zip(*pairs, strict=True))
    row_seconds = max(batch_seconds - single_seconds, 0.0) / (_ROWS - 1)
    return (
        length * max(single_seconds - row_seconds, 0.0) / row_seconds
        if row_seconds
        else float(length)
    )


def _seconds(graph: TensorGraph, feed: Feed) -> float:
    """Return the run's CPU time, which excludes other programs on the core."""
    start = time.process_time()
    graph(feed)
    return time.process_time() - start

# SPDX-License-Identifier: Apache-2.0
"""Whether texts of different lengths may share a run, and when that pays. Needs numpy.

Padded to one length they need one run instead of several, which computes padding as well. Both are
counted in tokens: a run costs as much as `run_tokens` tokens of padding do on this machine.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from buildlib.program import say
from onnxlib.graph import OnnxTensor
from taskproof.feeds import Feed, text_feeds

_MASK = "attention_mask"
_SEED = 1234
# Of the source's largest value, as precisions.py allows between fp32 graphs.
_TOLERANCE = 0.0001
_LENGTHS = (5, 12, 9)
_ROWS = 4
_TIMED_LENGTH = 32
_TIMED_RUNS = 15

Run = Callable[[Feed], Sequence[Any]]


def measured_padding(
    inputs: Sequence[OnnxTensor],
    outputs: Sequence[OnnxTensor],
    *,
    source: Run,
    engine: Run,
    pad_id: int,
    longest: int,
) -> dict[str, Any] | None:
    """The `padding` of the result's `runtime`; None where padding changes what `source` answers.

    `engine`: runs in one thread. `inputs`: the pad value by input. `outputs`: those
    with a value for each token, which are cut to a request's own length. `run_tokens`: tokens of
    padding that cost as much as a run.
    """
    if _MASK not in {tensor.name for tensor in inputs} or longest < max(_LENGTHS):
        return None
    by_token = _padded_alike(inputs, outputs, source, pad_id)
    if by_token is None:
        say("texts of different lengths run by themselves: padding changes this graph's answers")
        return None
    tokens = _run_tokens(inputs, engine, min(longest, _TIMED_LENGTH), pad_id)
    say(f"texts of different lengths share a run where that pads fewer than {tokens:.0f} tokens")
    pads = {tensor.name: pad_id if tensor.name == "input_ids" else 0 for tensor in inputs}
    return {"inputs": pads, "outputs": by_token, "run_tokens": round(tokens, 1)}


def _padded_alike(
    inputs: Sequence[OnnxTensor], outputs: Sequence[OnnxTensor], run: Run, pad_id: int
) -> list[str] | None:
    """The outputs with a value for each token; None if padding changes any answer."""
    random = np.random.default_rng(_SEED)
    # Ids 0 and 1 are in every vocabulary: a given graph does not say how large its own is.
    rows = [random.integers(0, 2, length).tolist() for length in _LENGTHS]
    [together] = text_feeds(rows, inputs, pad_id=pad_id, batch=len(rows))
    whole = run(together)
    by_token = [
        tensor.name
        for tensor, array in zip(outputs, whole, strict=True)
        if array.ndim > 1 and array.shape[1] == max(_LENGTHS) and not _fixed(tensor)
    ]
    for at, feed in enumerate(text_feeds(rows, inputs, pad_id=pad_id, batch=1)):
        for tensor, alone, padded in zip(outputs, run(feed), whole, strict=True):
            row = padded[at : at + 1]
            if tensor.name in by_token:
                row = row[:, : _LENGTHS[at]]
            if alone.shape != row.shape or not _equal(alone, row):
                return None
    return by_token


def _fixed(tensor: OnnxTensor) -> bool:
    """Whether the second dimension is a size: as many labels as there are tokens, by chance."""
    return isinstance((tensor.shape or ())[1], int)


def _equal(alone: Any, padded: Any) -> bool:
    if alone.dtype.kind not in "f":
        return bool((alone == padded).all())
    limit = _TOLERANCE * np.abs(alone).max(initial=0.0)
    return bool(np.abs(alone - padded).max(initial=0.0) <= limit)


def _run_tokens(inputs: Sequence[OnnxTensor], run: Run, length: int, pad_id: int) -> float:
    """What a run costs besides its rows, in tokens of a row.

    The fastest of several runs of each size, in turn: whatever else the machine does makes them
    slower, never faster.
    """
    feeds = [
        text_feeds([[0] * length] * rows, inputs, pad_id=pad_id, batch=rows)[0]
        for rows in (1, _ROWS)
    ]
    for feed in feeds:
        run(feed)
    pairs = [[_seconds(run, feed) for feed in feeds] for _ in range(_TIMED_RUNS)]
    one, several = map(min, zip(*pairs, strict=True))
    row = max(several - one, 0.0) / (_ROWS - 1)
    return length * max(one - row, 0.0) / row if row else float(length)


def _seconds(run: Run, feed: Feed) -> float:
    """Of this process's processor time: it does not pass while another program has the core."""
    began = time.process_time()
    run(feed)
    return time.process_time() - began

# SPDX-License-Identifier: Apache-2.0
"""The proposed load test: enough requests for a P99, at a rate that the device likely sustains."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tritonctl.engines.proposals.images import image_url
from tritonctl.engines.proposals.recognition import RecognisedCheckpoint
from tritonctl.formats.graph_file import GraphTensor

# P99 needs 500 requests, and the discarded warm-up is at most half of all.
REQUESTS = 1000
PROMPTS, INPUTS = "prompts.txt", "inputs.jsonl"
TEXT_TASKS = ("embedding", "classification", "rerank", "token_classification")
TEXTS = (
    "Explain in one sentence why the sky is blue.",
    "Write a short greeting for a customer who has waited too long.",
    "List three things to check before a long drive.",
    "What is the capital of Portugal, and which river runs through it?",
    "Translate to French: The meeting begins at nine.",
    "Summarise: The parcel was sent on Monday and has not come. The customer needs it by Friday.",
    "Name a vegetable for each letter of the word TREE.",
    "Write a polite reminder about an invoice that is two weeks late.",
    "What is seventeen times twenty-three?",
    "Give two reasons to write tests before code.",
    "Describe a lighthouse in a storm in two sentences.",
    "Which is heavier, a litre of water or a litre of oil? Say why.",
    "Write the first line of a story about a lost key.",
    "Turn into a question: The library closes at six on Sundays.",
    "How does a bicycle stay upright?",
    "Explain to a child what a bank does.",
)
# Conservative figures of a CPU: weight bytes read per second, and the speed-up of batching.
_BYTES_PER_SECOND, _BATCH_GAIN, _MAX_TOKENS_PER_SECOND = 10e9, 4.0, 400.0
_RATES = (10, 5, 2, 1, 0.5, 0.2, 0.1)
_LARGE = 1_000_000_000
# Tokens per answer by bytes of weights: shorter for large models, to bound the run's duration.
_TOKENS = ((200_000_000, 32), (2 * _LARGE, 16), (math.inf, 8))
_WORDS, _ROWS, _MAX_ELEMENTS = 32, 16, 200_000
_LIKELY_SIZE = {"height": 224, "width": 224, "h": 224, "w": 224}
_SHORT_TO_LONG = 4  # short texts for each long one
_STRIDE = 7919  # a prime, so that the ids of a row differ


@dataclass(frozen=True)
class ProposedLoad:
    """A load-test scenario and its request file."""

    scenario: dict[str, Any] | None  # None: the requests would be too large
    slo: dict[str, float]
    file: str  # name
    text: str  # content
    minutes: float  # duration


def text_load(name: str, weights: int, *, on_gpu: bool) -> ProposedLoad:
    """Return the load of a text-generation model; `weights` are the bytes read per token."""
    tokens = 64 if on_gpu else next(n for size, n in _TOKENS if weights < size)
    speed = min(_MAX_TOKENS_PER_SECOND, _BYTES_PER_SECOND * _BATCH_GAIN / max(weights, 1))
    rate = _RATES[0] if on_gpu else _largest_rate(speed / tokens / 2)
    scenario = _scenario(name, rate, {"prompts": PROMPTS, "max_tokens": tokens})
    is_slow = weights >= _LARGE and not on_gpu
    slo = {"ttft_p99_ms": 10_000 if is_slow else 2000, "error_rate": 0.01}
    text = "".join(f"{line}\n" for line in TEXTS)
    return ProposedLoad(scenario, slo, PROMPTS, text, REQUESTS / rate / 60)


def task_load(name: str, weights: int, task: str) -> ProposedLoad:
    """Return the load of a model that reads texts: short ones and some of many sentences."""
    long = (
        " ".join(TEXTS[start:] + TEXTS[:start]) for start in range(0, len(TEXTS), _SHORT_TO_LONG)
    )
    texts = [*TEXTS, *long]
    if task == "rerank":
        pairs = (json.dumps({"query": TEXTS[0], "text_input": text}) for text in texts)
        return _unary_load(name, weights, INPUTS, pairs)
    return _unary_load(name, weights, PROMPTS, texts)


def image_load(name: str, weights: int) -> ProposedLoad:
    """Return the load of a vision model, with images in the shapes of photographs."""
    tensors = ({"shape": [1, 1], "datatype": "BYTES", "data": [image_url(n)]} for n in range(_ROWS))
    rows = (json.dumps({"inputs": {"image": tensor}}) for tensor in tensors)
    return _unary_load(name, weights, INPUTS, rows)


def tensor_load(
    name: str, weights: int, checkpoint: RecognisedCheckpoint, length: int | None
) -> ProposedLoad:
    """Return the load of a model with tensor inputs."""
    rows = (json.dumps({"inputs": row}) for row in _request_rows(checkpoint, length))
    return _unary_load(name, weights, INPUTS, rows)


def _unary_load(name: str, weights: int, file: str, rows: Iterable[str]) -> ProposedLoad:
    rate = 20 if weights < _LARGE / 2 else 4
    # Latencies of short, frequent requests are correlated, so a P99 needs more of them.
    count = 2 * REQUESTS
    scenario = {"kind": "tensors"} | _scenario(name, rate, {"prompts": file}, count)
    slo = {"e2e_p99_ms": 2000 if weights < _LARGE / 2 else 5000, "error_rate": 0.01}
    text = "".join(f"{row}\n" for row in rows)
    return ProposedLoad(scenario if text else None, slo, file, text, count / rate / 60)


def _scenario(
    name: str, rate: float, request: dict[str, Any], count: int = REQUESTS
) -> dict[str, Any]:
    return {
        "model": name,
        "requests": [request],
        "arrivals": {"process": "poisson", "rate": rate},
        "count": count,
    }


def _largest_rate(max_rate: float) -> float:
    return next((rate for rate in _RATES if rate <= max_rate), _RATES[-1])


def _request_rows(checkpoint: RecognisedCheckpoint, length: int | None) -> Iterator[dict[str, Any]]:
    """Yield inputs: token ids for an encoder, constants for a graph of unknown meaning."""
    if checkpoint.kind == "encoder":
        words = min(_WORDS, length or 1)
        for number in range(_ROWS):
            yield {
                input_tensor.name: _token_ids(input_tensor, number, checkpoint, words)
                for input_tensor in checkpoint.inputs
            }
        return
    row = {
        input_tensor.name: _constant_tensor(input_tensor, length, batched=checkpoint.batched)
        for input_tensor in checkpoint.inputs
    }
    if all(tensor["data"] for tensor in row.values()):
        yield row


def _token_ids(
    tensor: GraphTensor, row: int, checkpoint: RecognisedCheckpoint, words: int
) -> dict[str, Any]:
    values = {
        "input_ids": [
            (row + position + 1) * _STRIDE % checkpoint.vocabulary for position in range(words)
        ],
        "attention_mask": [1] * words,
    }
    data = values.get(tensor.name, [0] * words)
    return {"shape": [1, words], "datatype": "INT64", "data": data}


def _constant_tensor(tensor: GraphTensor, length: int | None, *, batched: bool) -> dict[str, Any]:
    """Return a constant tensor; without data if Triton lacks the type or it is too large.

    Behind a batch dimension and for a scalar, Triton needs a dimension of 1.
    """
    sizes = [likely_size(size, length) for size in (tensor.shape or ())[int(batched) :]] or [1]
    shape = [1, *sizes] if batched else sizes
    datatype = (tensor.dtype or "").removeprefix("TYPE_")
    value: object = {"BOOL": True, "STRING": "text"}.get(datatype, 1)
    fits = datatype and math.prod(shape) <= _MAX_ELEMENTS
    data = [value] * math.prod(shape) if fits else []
    return {"shape": shape, "datatype": {"STRING": "BYTES"}.get(datatype, datatype), "data": data}


def likely_size(size: int | str, length: int | None) -> int:
    """Return a likely size of a variable dimension: of an image or of a text."""
    if isinstance(size, int):
        return size
    return _LIKELY_SIZE.get(size.lower(), min(_WORDS, length or _WORDS))

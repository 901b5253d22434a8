# SPDX-License-Identifier: Apache-2.0
"""The proposed load test: enough requests for its P99, at a rate that the device may well keep."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tritonctl.engines.proposals.images import image_url
from tritonctl.engines.proposals.recognition import Recognised
from tritonctl.formats.graph_file import GraphTensor

# P99 is shown from 500 requests on, and the warm-up that is cut off is at most a half.
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
# Bytes a second that a CPU reads of the weights, and what a batch gains: on the cautious side.
_BYTES_PER_SECOND, _BATCH_GAIN, _MOST_TOKENS = 10e9, 4.0, 400.0
_RATES = (10, 5, 2, 1, 0.5, 0.2, 0.1)
_LARGE = 1_000_000_000
# Tokens of an answer, by the bytes of the weights: a run of a large model should end today, too.
_TOKENS = ((200_000_000, 32), (2 * _LARGE, 16), (math.inf, 8))
_WORDS, _ROWS, _MOST_ELEMENTS = 32, 16, 200_000
_LIKELY_SIZE = {"height": 224, "width": 224, "h": 224, "w": 224}
_SHORT_TO_LONG = 4  # short texts for each long one
_STRIDE = 7919  # a prime: the ids of a row differ


@dataclass(frozen=True)
class Load:
    """A scenario and the file that it reads. scenario None: the requests would be too large."""

    scenario: dict[str, Any] | None
    slo: dict[str, float]
    file: str
    text: str
    minutes: float


def text_load(name: str, weights: int, *, on_gpu: bool) -> Load:
    """Of a model that generates text; `weights`: bytes that each token reads."""
    tokens = 64 if on_gpu else next(n for size, n in _TOKENS if weights < size)
    speed = min(_MOST_TOKENS, _BYTES_PER_SECOND * _BATCH_GAIN / max(weights, 1))
    rate = _RATES[0] if on_gpu else _rate(speed / tokens / 2)
    scenario = _scenario(name, rate, {"prompts": PROMPTS, "max_tokens": tokens})
    slow = weights >= _LARGE and not on_gpu
    slo = {"ttft_p99_ms": 10_000 if slow else 2000, "error_rate": 0.01}
    text = "".join(f"{line}\n" for line in TEXTS)
    return Load(scenario, slo, PROMPTS, text, REQUESTS / rate / 60)


def task_load(name: str, weights: int, task: str) -> Load:
    """Of a model that reads texts and answers once: short texts, and some of many sentences."""
    long = (" ".join(TEXTS[at:] + TEXTS[:at]) for at in range(0, len(TEXTS), _SHORT_TO_LONG))
    texts = [*TEXTS, *long]
    if task == "rerank":
        pairs = (json.dumps({"query": TEXTS[0], "text_input": text}) for text in texts)
        return _unary_load(name, weights, INPUTS, pairs)
    return _unary_load(name, weights, PROMPTS, texts)


def image_load(name: str, weights: int) -> Load:
    """Of a model that takes images: some of a photograph's shapes."""
    tensors = ({"shape": [1, 1], "datatype": "BYTES", "data": [image_url(n)]} for n in range(_ROWS))
    rows = (json.dumps({"inputs": {"image": tensor}}) for tensor in tensors)
    return _unary_load(name, weights, INPUTS, rows)


def tensor_load(name: str, weights: int, found: Recognised, length: int | None) -> Load:
    """Of a model that takes tensors."""
    rows = (json.dumps({"inputs": row}) for row in _rows(found, length))
    return _unary_load(name, weights, INPUTS, rows)


def _unary_load(name: str, weights: int, file: str, rows: Iterable[str]) -> Load:
    rate = 20 if weights < _LARGE / 2 else 4
    # Short answers to frequent requests tell less of each other's time than their number says.
    count = 2 * REQUESTS
    scenario = {"kind": "tensors"} | _scenario(name, rate, {"prompts": file}, count)
    slo = {"e2e_p99_ms": 2000 if weights < _LARGE / 2 else 5000, "error_rate": 0.01}
    text = "".join(f"{row}\n" for row in rows)
    return Load(scenario if text else None, slo, file, text, count / rate / 60)


def _scenario(
    name: str, rate: float, request: dict[str, Any], count: int = REQUESTS
) -> dict[str, Any]:
    return {
        "model": name,
        "requests": [request],
        "arrivals": {"process": "poisson", "rate": rate},
        "count": count,
    }


def _rate(most: float) -> float:
    return next((rate for rate in _RATES if rate <= most), _RATES[-1])


def _rows(found: Recognised, length: int | None) -> Iterator[dict[str, Any]]:
    """Token ids for an encoder; ones for a graph, of which nothing more is known."""
    if found.kind == "encoder":
        words = min(_WORDS, length or 1)
        for at in range(_ROWS):
            yield {one.name: _ids(one, at, found, words) for one in found.inputs}
        return
    ones = {one.name: _ones(one, length) for one in found.inputs}
    if all(tensor["data"] for tensor in ones.values()):
        yield ones


def _ids(tensor: GraphTensor, row: int, found: Recognised, words: int) -> dict[str, Any]:
    values = {
        "input_ids": [(row + at + 1) * _STRIDE % found.vocabulary for at in range(words)],
        "attention_mask": [1] * words,
    }
    data = values.get(tensor.name, [0] * words)
    return {"shape": [1, words], "datatype": "INT64", "data": data}


def _ones(tensor: GraphTensor, length: int | None) -> dict[str, Any]:
    """One request's; no data where Triton has no such type, or too much of it would be needed."""
    shape = [1, *(size_of(size, length) for size in (tensor.shape or ())[1:])]
    datatype = (tensor.dtype or "").removeprefix("TYPE_")
    one: object = {"BOOL": True, "STRING": "text"}.get(datatype, 1)
    fits = datatype and math.prod(shape) <= _MOST_ELEMENTS
    data = [one] * math.prod(shape) if fits else []
    return {"shape": shape, "datatype": {"STRING": "BYTES"}.get(datatype, datatype), "data": data}


def size_of(size: int | str, length: int | None) -> int:
    """A size that a variable dimension may have: an image's, or that of a text."""
    if isinstance(size, int):
        return size
    return _LIKELY_SIZE.get(size.lower(), min(_WORDS, length or _WORDS))

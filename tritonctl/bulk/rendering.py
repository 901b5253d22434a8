# SPDX-License-Identifier: Apache-2.0
"""A line's results as a line of JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tritonctl.bulk.parsing import NO_ID
from tritonctl.protocol.tasks import (
    Classification,
    Embedding,
    Relevance,
    Result,
    TokenClassification,
)

FLOAT, BASE64 = "float", "base64"


def error_line(index: int, name: Any, problem: str) -> bytes:
    """Of a line without an answer."""
    return _line({**_head(index, name), "error": problem})


def result_line(
    index: int,
    name: Any,
    results: Sequence[Result],
    *,
    several: bool,
    encoding: str = FLOAT,
    top_k: int | None = None,
) -> bytes:
    """Of a line with its results. several: documents of one query, the best first."""
    head = _head(index, name)
    if several:
        found = [
            {"index": place, "score": _score(one.score), **_counts(one)}
            for place, one in enumerate(results)
            if isinstance(one, Relevance)
        ]
        return _line({**head, "results": sorted(found, key=lambda one: -one["score"])})
    [one] = results
    match one:
        case Embedding():
            return _embedding(head, one, encoding)
        case Classification():
            pairs = list(zip(one.labels, one.scores, strict=True))[:top_k]
            labels = [{"label": label, "score": _score(score)} for label, score in pairs]
            return _line({**head, "labels": labels, **_counts(one)})
        case TokenClassification():
            entities = [asdict(entity) for entity in one.entities]
            return _line({**head, "entities": entities, **_counts(one)})
        case Relevance():
            return _line({**head, "score": _score(one.score), **_counts(one)})


def _head(index: int, name: Any) -> dict[str, Any]:
    return {"index": index} if name is NO_ID else {"index": index, "id": name}


def _counts(one: Result) -> dict[str, Any]:
    """What only texts have."""
    if one.num_input_tokens is None:
        return {}
    return {"num_input_tokens": one.num_input_tokens, "truncated": one.truncated}


def _embedding(head: dict[str, Any], one: Embedding, encoding: str) -> bytes:
    if encoding == BASE64:
        text = base64.b64encode(one.vector.astype("<f4").tobytes()).decode()
        return _line({**head, "embedding": text, **_counts(one)})
    # Nine digits are exactly one FP32; json would write seventeen, and take three times as long.
    numbers = ("%.9g," * len(one.vector))[:-1] % tuple(one.vector.tolist())
    before, after = _text({**head, "embedding": None, **_counts(one)}).split("null", 1)
    return f"{before}[{numbers}]{after}\n".encode()


def _score(value: float) -> float:
    """With the digits that an FP32 has."""
    return float(f"{value:.9g}")


def _line(record: dict[str, Any]) -> bytes:
    return f"{_text(record)}\n".encode()


def _text(record: dict[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a character, as JSON may have it: "\ud83d"
        return json.dumps(record)
    return text

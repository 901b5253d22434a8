# SPDX-License-Identifier: Apache-2.0
"""Render a line's results as a line of JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
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
_BOUNDS = (0.0, 1.0)  # of a sigmoid and a softmax


def error_line(index: int, line_id: Any, problem: str) -> bytes:
    """Return the output line of a failed line."""
    return _line({**_head(index, line_id), "error": problem})


def result_line(
    index: int,
    line_id: Any,
    results: Sequence[Result],
    *,
    is_ranking: bool,
    encoding: str = FLOAT,
    top_k: int | None = None,
) -> bytes:
    """Return the output line with a line's results.

    is_ranking: the results are the documents of one query, listed best first. top_k: labels to
    keep.
    """
    head = _head(index, line_id)
    if is_ranking:
        relevances = [
            replace(result, index=position)
            for position, result in enumerate(results)
            if isinstance(result, Relevance)
        ]
        relevances.sort(key=lambda relevance: -relevance.rank)
        ranked = [
            {"index": each.index, "score": _score(each.score), **_counts(each)}
            for each in relevances
        ]
        # An FP32 activation gives 1.0 for all logits above 17. Without logits their order is that
        # of sending.
        saturated = sum(each.logit is None and each.score in _BOUNDS for each in relevances)
        note = {"saturated": saturated} if saturated > 1 else {}
        return _line({**head, "results": ranked, **note})
    [result] = results
    match result:
        case Embedding():
            return _embedding(head, result, encoding)
        case Classification():
            pairs = list(zip(result.labels, result.scores, strict=True))[:top_k]
            labels = [{"label": label, "score": _score(score)} for label, score in pairs]
            return _line({**head, "labels": labels, **_counts(result)})
        case TokenClassification():
            entities = [asdict(entity) for entity in result.entities]
            return _line({**head, "entities": entities, **_counts(result)})
        case Relevance():
            return _line({**head, "score": _score(result.score), **_counts(result)})


def _head(index: int, line_id: Any) -> dict[str, Any]:
    return {"index": index} if line_id is NO_ID else {"index": index, "id": line_id}


def _counts(result: Result) -> dict[str, Any]:
    """Return the token counts, which only texts have."""
    if result.num_input_tokens is None:
        return {}
    return {"num_input_tokens": result.num_input_tokens, "truncated": result.truncated}


def _embedding(head: dict[str, Any], result: Embedding, encoding: str) -> bytes:
    if encoding == BASE64:
        text = base64.b64encode(result.vector.astype("<f4").tobytes()).decode()
        return _line({**head, "embedding": text, **_counts(result)})
    # Nine digits represent an FP32 exactly; json writes seventeen and takes three times as long.
    numbers = ("%.9g," * len(result.vector))[:-1] % tuple(result.vector.tolist())
    prefix, suffix = _text({**head, "embedding": None, **_counts(result)}).split("null", 1)
    return f"{prefix}[{numbers}]{suffix}\n".encode()


def _score(value: float) -> float:
    """Round to the digits of an FP32."""
    return float(f"{value:.9g}")


def _line(record: dict[str, Any]) -> bytes:
    return f"{_text(record)}\n".encode()


def _text(record: dict[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows: "\ud83d"
        return json.dumps(record)
    return text

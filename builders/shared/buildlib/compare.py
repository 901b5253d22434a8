# SPDX-License-Identifier: Apache-2.0
"""Compares the answers of an engine with those of its checkpoint. Standard library only."""

import itertools
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from buildlib.problems import BuildError
from buildlib.prompts import EvaluationPrompt
from buildlib.request_types import BuilderRequest
from buildlib.result_types import AnswerComparison, AnswerDivergence


def compare_answers(
    prompts: Sequence[EvaluationPrompt],
    expected: Sequence[list[int]],
    actual: Sequence[list[int]],
    tokenizer: Any,
) -> AnswerComparison:
    """Compare `actual` with `expected` answers up to and including the end token.

    A divergence is the position (from 0) of the first answer token that differs.
    """
    positions = [_first_difference(want, have) for want, have in zip(expected, actual, strict=True)]
    diverged = [index for index, position in enumerate(positions) if position is not None]
    divergences = [position for position in positions if position is not None]
    first_divergence = None
    if diverged:
        index = diverged[0]
        want, have = _decode_both(tokenizer, expected[index], actual[index])
        text, token = prompts[index].text, divergences[0]
        first_divergence = AnswerDivergence(text, token, expected=want, got=have)
    return AnswerComparison(
        prompts=len(prompts),
        exact_match=(len(prompts) - len(diverged)) / len(prompts),
        answer_match=_answer_match(prompts, actual, tokenizer),
        diverged=len(diverged),
        first_divergence=first_divergence,
        mean_divergence_token=fmean(divergences) if divergences else None,
    )


def _first_difference(expected: list[int], actual: list[int]) -> int | None:
    pairs = itertools.zip_longest(expected, actual)
    return next(
        (
            position
            for position, (expected_id, actual_id) in enumerate(pairs)
            if expected_id != actual_id
        ),
        None,
    )


def _decode_both(tokenizer: Any, expected: list[int], actual: list[int]) -> tuple[str, str]:
    """Return both answers as text. Special tokens show only where nothing else differs."""
    texts = tuple(tokenizer.decode(ids, skip_special_tokens=True) for ids in (expected, actual))
    if texts[0] == texts[1]:
        texts = tuple(
            tokenizer.decode(ids, skip_special_tokens=False) for ids in (expected, actual)
        )
    return texts[0], texts[1]


def _answer_match(
    prompts: Sequence[EvaluationPrompt], actual: Sequence[list[int]], tokenizer: Any
) -> float | None:
    matches = [
        tokenizer.decode(ids, skip_special_tokens=True) == prompt.answer
        for prompt, ids in zip(prompts, actual, strict=True)
        if prompt.answer is not None
    ]
    return fmean(matches) if matches else None


def require_min_exact_match(
    comparison: AnswerComparison, request: BuilderRequest, *, remedy: str
) -> None:
    """Check the share of equal answers against the request's min_exact_match.

    Raises:
        BuildError: too few answers are equal. The problem has the figures.
    """
    min_exact_match = request.evaluation.min_exact_match if request.evaluation else None
    if min_exact_match is None or comparison.exact_match >= min_exact_match:
        return
    matching = comparison.prompts - comparison.diverged
    problem = (
        f"the {request.precision} engine answers {matching} of {comparison.prompts} prompts "
        f"exactly as the checkpoint does ({comparison.exact_match:.1%}), and min_exact_match "
        f"asks for {min_exact_match:.1%}"
    )
    first = comparison.first_divergence
    if first:
        problem += (
            f"; first divergence: {first.prompt!r}, token {first.token}: "
            f"{first.expected!r} became {first.got!r}"
        )
    raise BuildError(problem, remedy=remedy)

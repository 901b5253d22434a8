# SPDX-License-Identifier: Apache-2.0
"""The figures of an evaluation, from two lists of answers. Standard library only."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from buildlib.problems import BuildError
from buildlib.prompts import Prompt
from buildlib.request import Request


@dataclass(frozen=True)
class Outcome:
    """The `evaluation` object of the build result, and nothing else."""

    prompts: int
    exact_match: float
    answer_match: float | None
    diverged: int
    first_divergence: dict[str, Any] | None
    mean_divergence_token: float | None


def compare(
    prompts: Sequence[Prompt],
    expected: Sequence[list[int]],
    got: Sequence[list[int]],
    tokenizer: Any,
) -> Outcome:
    """Compare the answers `got` with those `expected`, up to and including the end token.

    A divergence is the position (from 0) of the first answer token that differs.
    """
    positions = [_divergence(want, have) for want, have in zip(expected, got, strict=True)]
    diverged = [index for index, position in enumerate(positions) if position is not None]
    first = None
    if diverged:
        index = diverged[0]
        want, have = _texts(tokenizer, expected[index], got[index])
        text, token = prompts[index].text, positions[index]
        first = {"prompt": text, "token": token, "expected": want, "got": have}
    divergences = [position for position in positions if position is not None]
    return Outcome(
        prompts=len(prompts),
        exact_match=(len(prompts) - len(diverged)) / len(prompts),
        answer_match=_answer_match(prompts, got, tokenizer),
        diverged=len(diverged),
        first_divergence=first,
        mean_divergence_token=fmean(divergences) if divergences else None,
    )


def _divergence(want: list[int], have: list[int]) -> int | None:
    pairs = itertools.zip_longest(want, have)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), None)


def _texts(tokenizer: Any, want: list[int], have: list[int]) -> tuple[str, str]:
    """Return both answers as text; with the special tokens where only those differ."""
    texts = tuple(tokenizer.decode(ids, skip_special_tokens=True) for ids in (want, have))
    if texts[0] == texts[1]:
        texts = tuple(tokenizer.decode(ids, skip_special_tokens=False) for ids in (want, have))
    return texts[0], texts[1]


def _answer_match(
    prompts: Sequence[Prompt], got: Sequence[list[int]], tokenizer: Any
) -> float | None:
    right = [
        tokenizer.decode(ids, skip_special_tokens=True) == prompt.answer
        for prompt, ids in zip(prompts, got, strict=True)
        if prompt.answer is not None
    ]
    return fmean(right) if right else None


def require(outcome: Outcome, request: Request, *, remedy: str) -> None:
    """Check `outcome` against the request's min_exact_match.

    Raises:
        BuildError: too few answers are equal; the figures are in the problem.
    """
    least = request.evaluation.min_exact_match if request.evaluation else None
    if least is None or outcome.exact_match >= least:
        return
    same = outcome.prompts - outcome.diverged
    problem = (
        f"the {request.precision} engine answers {same} of {outcome.prompts} prompts exactly as "
        f"the checkpoint does ({outcome.exact_match:.1%}), and min_exact_match asks for "
        f"{least:.1%}"
    )
    first = outcome.first_divergence
    if first:
        problem += (
            f"; first divergence: {first['prompt']!r}, token {first['token']}: "
            f"{first['expected']!r} became {first['got']!r}"
        )
    raise BuildError(problem, remedy=remedy)

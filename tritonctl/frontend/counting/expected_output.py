# SPDX-License-Identifier: Apache-2.0
"""Estimate an answer's length from the model's recent answers."""

from __future__ import annotations

from collections import OrderedDict

# Weight of the latest answer; about the last thirty answers count.
_WEIGHT = 1 / 16
_MAX_MODELS = 1024


class ExpectedOutput:
    """Expected tokens of an answer by model: a moving mean of its complete answers."""

    def __init__(self, first_guess: int = 64) -> None:
        """`first_guess`: the estimate before a model's first answer."""
        self._first_guess = first_guess
        self._means: OrderedDict[str, float] = OrderedDict()

    def of(self, model: str, max_tokens: int | None) -> int:
        """Return the estimate, at least 1 and at most `max_tokens`."""
        mean = self._means.get(model, float(self._first_guess))
        expected = max(1, round(mean))
        return expected if max_tokens is None else max(1, min(expected, max_tokens))

    def learn(self, model: str, tokens: int) -> None:
        """Learn from a complete answer."""
        mean = self._means.pop(model, float(tokens))
        self._means[model] = mean + (tokens - mean) * _WEIGHT
        if len(self._means) > _MAX_MODELS:
            self._means.popitem(last=False)

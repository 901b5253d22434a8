# SPDX-License-Identifier: Apache-2.0
"""How long an answer will probably be, learned from the model's recent answers."""

from __future__ import annotations

from collections import OrderedDict

# Of an answer's length; about the last thirty answers count.
_WEIGHT = 1 / 16
_MOST_MODELS = 1024


class ExpectedOutput:
    """Expected tokens of an answer, by model: a moving mean of those that came to their end."""

    def __init__(self, first_guess: int = 64) -> None:
        """`first_guess`: before a model has answered."""
        self._first_guess = first_guess
        self._means: OrderedDict[str, float] = OrderedDict()

    def of(self, model: str, max_tokens: int | None) -> int:
        """At least 1, at most `max_tokens`."""
        mean = self._means.get(model, float(self._first_guess))
        expected = max(1, round(mean))
        return expected if max_tokens is None else max(1, min(expected, max_tokens))

    def learn(self, model: str, tokens: int) -> None:
        """An answer of so many tokens came to its end."""
        mean = self._means.pop(model, float(tokens))
        self._means[model] = mean + (tokens - mean) * _WEIGHT
        if len(self._means) > _MOST_MODELS:
            self._means.popitem(last=False)

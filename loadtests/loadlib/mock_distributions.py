# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint's distributions, written as `name:number:number`.

5  or  constant:5        always 5
exponential:20           mean 20
bimodal:10:100:0.05      10, and 100 with probability 0.05
lognormal:20:0.5         median 20, sigma 0.5 of the logarithm
uniform:10:30            10 to 30
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class MockDistribution:
    """A kind and its numbers, as in this module's docstring."""

    kind: str
    numbers: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> MockDistribution:
        """Read `exponential:20`. Raises ValueError."""
        kind, *parts = text.split(":")
        try:
            if not parts:
                kind, parts = "constant", [kind]
            numbers = tuple(float(part) for part in parts)
        except ValueError:
            raise ValueError(f"invalid distribution {text!r}; {_EXPECTED}") from None
        if kind not in _FORMS or len(numbers) != _FORMS[kind][0]:
            raise ValueError(f"invalid distribution {text!r}; {_EXPECTED}")
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError(f"{text!r}: the numbers must be 0 or more")
        if kind == "bimodal" and numbers[2] > 1:
            raise ValueError(f"{text!r}: the last number is a probability, at most 1")
        if kind == "lognormal" and not numbers[0]:
            raise ValueError(f"{text!r}: the median must be more than 0")
        return cls(kind, numbers)

    def draw(self, generator: random.Random) -> float:
        """Draw a value."""
        return _FORMS[self.kind][1](generator, *self.numbers)


# The number of parameters and the draw function of each kind.
_FORMS: dict[str, tuple[int, Callable[..., float]]] = {
    "constant": (1, lambda _, value: value),
    "exponential": (1, lambda draw, mean: draw.expovariate(1 / mean) if mean else 0.0),
    "bimodal": (3, lambda draw, usual, rare, share: rare if draw.random() < share else usual),
    "lognormal": (2, lambda draw, median, sigma: draw.lognormvariate(math.log(median), sigma)),
    "uniform": (2, random.Random.uniform),
}
_EXPECTED = (
    "expected a number, exponential:MEAN, bimodal:USUAL:RARE:SHARE, lognormal:MEDIAN:SIGMA or "
    "uniform:LOWEST:HIGHEST"
)

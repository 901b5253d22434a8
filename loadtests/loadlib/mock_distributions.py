# SPDX-License-Identifier: Apache-2.0
"""Distributions that the mock endpoint draws from, written as `name:number:number`.

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
class Distribution:
    """`kind` and its numbers, as the table in this module's docstring has them."""

    kind: str
    numbers: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Distribution:
        """Read `exponential:20`. Raises ValueError with what was expected."""
        kind, *parts = text.split(":")
        try:
            if not parts:
                kind, parts = "constant", [kind]
            numbers = tuple(float(part) for part in parts)
        except ValueError:
            raise ValueError(f"invalid distribution {text!r}; {_EXPECTED}") from None
        if kind not in _FORMS or len(numbers) != _FORMS[kind].numbers:
            raise ValueError(f"invalid distribution {text!r}; {_EXPECTED}")
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError(f"{text!r}: its numbers must be 0 or more")
        if kind == "bimodal" and numbers[2] > 1:
            raise ValueError(f"{text!r}: the last number is a probability, at most 1")
        if kind == "lognormal" and not numbers[0]:
            raise ValueError(f"{text!r}: the median must be more than 0")
        return cls(kind, numbers)

    def draw(self, generator: random.Random) -> float:
        """One value."""
        return _FORMS[self.kind].draw(self.numbers, generator)

    @property
    def is_random(self) -> bool:
        """Whether a draw needs the generator at all."""
        return self.kind != "constant"


@dataclass(frozen=True)
class _Form:
    numbers: int
    draw: Callable[[tuple[float, ...], random.Random], float]


def _constant(numbers: tuple[float, ...], _: random.Random) -> float:
    return numbers[0]


def _exponential(numbers: tuple[float, ...], generator: random.Random) -> float:
    return generator.expovariate(1 / numbers[0]) if numbers[0] else 0.0


def _bimodal(numbers: tuple[float, ...], generator: random.Random) -> float:
    usual, rare, share = numbers
    return rare if generator.random() < share else usual


def _lognormal(numbers: tuple[float, ...], generator: random.Random) -> float:
    return generator.lognormvariate(math.log(numbers[0]), numbers[1])


def _uniform(numbers: tuple[float, ...], generator: random.Random) -> float:
    return generator.uniform(*numbers)


_FORMS = {
    "constant": _Form(1, _constant),
    "exponential": _Form(1, _exponential),
    "bimodal": _Form(3, _bimodal),
    "lognormal": _Form(2, _lognormal),
    "uniform": _Form(2, _uniform),
}
_EXPECTED = (
    "expected a number, exponential:MEAN, bimodal:USUAL:RARE:SHARE, lognormal:MEDIAN:SIGMA or "
    "uniform:LOWEST:HIGHEST"
)

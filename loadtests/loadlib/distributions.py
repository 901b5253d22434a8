# SPDX-License-Identifier: Apache-2.0
"""Distributions of lengths, turns and pauses: a number, or an object with one key.

    64 · {uniform: [lo, hi]} · {normal: {mean, std}} · {lognormal: {median, sigma}} ·
    {exponential: {mean}} · {choice: {values, weights}} · {file: numbers.txt}

A draw takes what it needs from the given random.Random and nothing else: seeded, it repeats.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from loadlib.schema import is_number, refused
from loadlib.trace import read_lines

Draw = Callable[[Random], float]


@dataclass(frozen=True)
class Distribution:
    """Draws numbers; never below 0."""

    draw_any: Draw
    draw_integer: Draw | None = None

    def draw(self, random: Random) -> float:
        """A number of 0 or more."""
        return max(0.0, self.draw_any(random))

    def draw_whole(self, random: Random, least: int = 1) -> int:
        """A whole number of `least` or more."""
        return max(least, round((self.draw_integer or self.draw_any)(random)))


def parse(content: Any, where: str) -> Distribution:
    """The distribution of a field that passed the schema; Refusal for a bad range or file."""
    if is_number(content):
        return Distribution(lambda _: content)
    kind, arguments = next((kind, one) for kind, one in content.items() if one is not None)
    draw = _KINDS[kind](arguments, f"{where}.{kind}")
    return Distribution(draw, _integers(*arguments) if kind == "uniform" else None)


def _integers(low: float, high: float) -> Draw | None:
    """Whole numbers of a range: both ends as likely as the rest, which rounding would not give."""
    first, last = math.ceil(low), math.floor(high)
    return (lambda random: random.randint(first, last)) if first <= last else None


def _uniform(arguments: list[float], where: str) -> Draw:
    low, high = arguments
    if low > high:
        raise refused(where, f"{low:g} is above {high:g}", "give [lowest, highest]")
    return lambda random: random.uniform(low, high)


def _normal(arguments: dict[str, float], _: str) -> Draw:
    return lambda random: random.gauss(arguments["mean"], arguments["std"])


def _lognormal(arguments: dict[str, float], _: str) -> Draw:
    mu, sigma = math.log(arguments["median"]), arguments["sigma"]
    return lambda random: random.lognormvariate(mu, sigma)


def _exponential(arguments: dict[str, float], _: str) -> Draw:
    return lambda random: random.expovariate(1 / arguments["mean"])


def _choice(arguments: dict[str, list[float]], where: str) -> Draw:
    values, weights = arguments["values"], arguments["weights"]
    if weights is None:
        return lambda random: random.choice(values)
    if len(weights) != len(values) or not sum(weights):
        raise refused(
            f"{where}.weights",
            f"{len(weights)} weights for {len(values)} values, sum {sum(weights):g}",
            "give one weight for each value, and one above 0",
        )
    return lambda random: random.choices(values, weights)[0]


def _file(arguments: str, where: str) -> Draw:
    path = Path(arguments)
    lines = read_lines(path, where)
    values = [_number(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not values:
        raise refused(where, f"{path}:1: no numbers", "write a number on each line")
    return lambda random: random.choice(values)


def _number(line: str, where: str) -> float:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not is_number(value) or value < 0:
        raise refused(where, f"{line.strip()!r} is not a number of 0 or more", "one per line")
    return float(value)


_KINDS: dict[str, Callable[[Any, str], Draw]] = {
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "exponential": _exponential,
    "choice": _choice,
    "file": _file,
}

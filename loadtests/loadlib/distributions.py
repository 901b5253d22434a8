# SPDX-License-Identifier: Apache-2.0
"""Distributions of lengths, turns and pauses: a number, or an object with one key.

    64 · {uniform: [lo, hi]} · {normal: {mean, std}} · {lognormal: {median, sigma}} ·
    {exponential: {mean}} · {choice: {values, weights}} · {file: numbers.txt}

A draw uses only the random.Random it is given, so a seed reproduces it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from loadlib.schema import field_error, is_number
from loadlib.trace import read_lines

Draw = Callable[[Random], float]


@dataclass(frozen=True)
class PlanDistribution:
    """Draws numbers of 0 or more."""

    draw_any: Draw
    draw_integer: Draw | None = None

    def draw(self, random: Random) -> float:
        """Draw a number of 0 or more."""
        return max(0.0, self.draw_any(random))

    def draw_whole(self, random: Random, min_value: int = 1) -> int:
        """Draw a whole number of `min_value` or more."""
        return max(min_value, round((self.draw_integer or self.draw_any)(random)))


def parse_distribution(content: Any, location: str) -> PlanDistribution:
    """Parse a schema-valid distribution. Raises RunRefusedError for a bad range or file."""
    if is_number(content):
        return PlanDistribution(lambda _: content)
    kind, arguments = next((kind, value) for kind, value in content.items() if value is not None)
    draw = _KINDS[kind](arguments, f"{location}.{kind}")
    return PlanDistribution(draw, _integers(*arguments) if kind == "uniform" else None)


def _integers(low: float, high: float) -> Draw | None:
    """Draw whole numbers of a range uniformly; rounding would halve the weight of both ends."""
    first, last = math.ceil(low), math.floor(high)
    return (lambda random: random.randint(first, last)) if first <= last else None


def _uniform(arguments: list[float], location: str) -> Draw:
    low, high = arguments
    if low > high:
        raise field_error(location, f"{low:g} is above {high:g}", "give [lowest, highest]")
    return lambda random: random.uniform(low, high)


def _normal(arguments: dict[str, float], _: str) -> Draw:
    return lambda random: random.gauss(arguments["mean"], arguments["std"])


def _lognormal(arguments: dict[str, float], _: str) -> Draw:
    mu, sigma = math.log(arguments["median"]), arguments["sigma"]
    return lambda random: random.lognormvariate(mu, sigma)


def _exponential(arguments: dict[str, float], _: str) -> Draw:
    return lambda random: random.expovariate(1 / arguments["mean"])


def _choice(arguments: dict[str, list[float]], location: str) -> Draw:
    values, weights = arguments["values"], arguments["weights"]
    if weights is None:
        return lambda random: random.choice(values)
    if len(weights) != len(values) or not sum(weights):
        raise field_error(
            f"{location}.weights",
            f"{len(weights)} weights for {len(values)} values, sum {sum(weights):g}",
            "give one weight for each value, and one above 0",
        )
    return lambda random: random.choices(values, weights)[0]


def _file(path: Path, location: str) -> Draw:
    lines = read_lines(path, location)
    values = [_number(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not values:
        raise field_error(location, f"{path}:1: no numbers", "write a number on each line")
    return lambda random: random.choice(values)


def _number(line: str, location: str) -> float:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not is_number(value) or value < 0:
        raise field_error(
            location, f"{line.strip()!r} is not a number of 0 or more", "one per line"
        )
    return float(value)


_KINDS: dict[str, Callable[[Any, str], Draw]] = {
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "exponential": _exponential,
    "choice": _choice,
    "file": _file,
}

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

from loadlib.fields import Fields, is_number, nearest, refused

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
    """The distribution at a field; Refusal where it is none."""
    if is_number(content):
        if content < 0:
            raise refused(where, f"{content:g} is below 0", "give 0 or more")
        return Distribution(lambda _: content)
    if isinstance(content, dict):
        content = {kind: arguments for kind, arguments in content.items() if arguments is not None}
    if not isinstance(content, dict) or len(content) != 1:
        raise refused(
            where,
            f"{content!r} is neither a number nor a distribution",
            f"give a number or one of {', '.join(_KINDS)}",
        )
    kind, arguments = next(iter(content.items()))
    if kind not in _KINDS:
        raise refused(f"{where}.{kind}", "no such distribution", nearest(str(kind), list(_KINDS)))
    draw = _KINDS[kind](arguments, f"{where}.{kind}")
    return Distribution(draw, _integers(*arguments) if kind == "uniform" else None)


def _integers(low: float, high: float) -> Draw | None:
    """Whole numbers of a range: both ends as likely as the rest, which rounding would not give."""
    first, last = math.ceil(low), math.floor(high)
    return (lambda random: random.randint(first, last)) if first <= last else None


def _uniform(arguments: Any, where: str) -> Draw:
    numbers = isinstance(arguments, list) and all(is_number(item) for item in arguments)
    if not numbers or len(arguments) != 2 or not 0 <= arguments[0] <= arguments[1]:  # noqa: PLR2004
        raise refused(where, f"{arguments!r} is no range", "give [lowest, highest], from 0 up")
    low, high = arguments
    return lambda random: random.uniform(low, high)


def _normal(arguments: Any, where: str) -> Draw:
    fields = Fields(arguments, where, ("mean", "std"))
    mean, std = fields.number("mean"), fields.number("std")
    return lambda random: random.gauss(mean, std)


def _lognormal(arguments: Any, where: str) -> Draw:
    fields = Fields(arguments, where, ("median", "sigma"))
    median, sigma = fields.number("median", above=0), fields.number("sigma")
    return lambda random: random.lognormvariate(math.log(median), sigma)


def _exponential(arguments: Any, where: str) -> Draw:
    mean = Fields(arguments, where, ("mean",)).number("mean", above=0)
    return lambda random: random.expovariate(1 / mean)


def _choice(arguments: Any, where: str) -> Draw:
    fields = Fields(arguments, where, ("values", "weights"))
    values = _numbers(fields.items("values"), fields.at("values"))
    if "weights" not in fields:
        return lambda random: random.choice(values)
    weights = _numbers(fields.items("weights"), fields.at("weights"))
    if len(weights) != len(values) or not sum(weights):
        raise refused(
            fields.at("weights"),
            f"{len(weights)} weights for {len(values)} values, sum {sum(weights):g}",
            "give one weight for each value, and one above 0",
        )
    return lambda random: random.choices(values, weights)[0]


def _file(arguments: Any, where: str) -> Draw:
    path = Path(str(arguments))
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise refused(
            where, f"cannot read {path}: {error.strerror}", "name a readable file"
        ) from error
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
        raise refused(where, f"{line.strip()!r} is no number of 0 or more", "one number a line")
    return float(value)


def _numbers(values: list[Any], where: str) -> list[float]:
    for number, value in enumerate(values):
        if not is_number(value) or value < 0:
            raise refused(f"{where}[{number}]", f"{value!r}", "give numbers of 0 or more")
    return values


_KINDS: dict[str, Callable[[Any, str], Draw]] = {
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "exponential": _exponential,
    "choice": _choice,
    "file": _file,
}

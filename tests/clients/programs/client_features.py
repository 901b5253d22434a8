# SPDX-License-Identifier: Apache-2.0
"""What every client's program does: try each feature by itself, and say what came of it.

A program runs in its client's environment with the path of a file of `Facts`, and prints one JSON
line per feature: {"feature": name, "problem": "" or what went wrong}.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LONGEST = 2000


@dataclass(frozen=True)
class Facts:
    """The server, and what the ensembles answer when they are asked directly.

    `url` ends with /v1. Models: `speller` spells, `finder` embeds, `tools` is scripted: by seed 0
    it calls `spell` of 7342, by 1 it says `person`, a JSON object, and by 2 it never ends.
    `answer`: of `prompt` and of `message` in a conversation; `vector`: of `text`.
    """

    url: str
    speller: str
    finder: str
    tools: str
    prompt: str
    prompt_ids: list[int]  # of the prompt
    answer: str
    message: str
    message_answer: str
    message_tokens: list[int]  # of the prompt, of the answer
    text: str
    vector: list[float]
    person: dict[str, Any]


Features = dict[str, Callable[[Facts], Any]]


def main(features: Features) -> None:
    """Try all of them."""
    facts = Facts(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    for name, attempt in features.items():
        line = json.dumps({"feature": name, "problem": _problem(attempt, facts)})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _problem(attempt: Callable[[Facts], Any], facts: Facts) -> str:
    try:
        result = attempt(facts)
        if inspect.isawaitable(result):
            asyncio.run(_finished(result))
    except Exception:
        return traceback.format_exc()[-_LONGEST:]
    return ""


async def _finished(result: Any) -> None:
    await asyncio.wait_for(result, 60)


def same(found: Any, wanted: Any) -> None:
    """Raises ValueError unless they are equal."""
    if found != wanted:
        raise ValueError(f"got {found!r}, expected {wanted!r}")


def near(found: list[float], wanted: list[float]) -> None:
    """Raises ValueError unless these are the same vector, but for the rounding of JSON."""
    same(len(found), len(wanted))
    worst = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
    if worst > 1e-5:
        raise ValueError(f"the vectors are {worst} apart")


def check(holds: Any, what: str) -> None:
    """Raises ValueError unless it holds."""
    if not holds:
        raise ValueError(what)


SPELL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "spell",
        "description": "Spells a number",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
        },
    },
}
CALLED = {"number": 7342}
NAMES, AGES = ["Ada", "Grace"], [36, 85]
# Of few values, so that an answer ends: the model itself would not end it.
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": NAMES}, "age": {"enum": AGES}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

# SPDX-License-Identifier: Apache-2.0
"""The cases of text_generation.yaml, and which of them go to which engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("text_generation.yaml")
SUITE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in SUITE["cases"]}
# Refusals come from what all engines share: the tokenizer, the options that they read, Triton. So
# one engine gets them all, and the others one of each sort.
SENTINELS = {
    "a prompt that is not UTF-8",
    "no budget",
    "temperature NaN",
    "a stop word of 257 bytes",
    "an unknown tensor",
}


def missing_needs(case: Mapping[str, Any], has: Collection[str]) -> list[str]:
    """What the engine lacks for this case."""
    return [need for need in case.get("needs", ()) if need not in has]


def assigned(engines: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """Engine and case, for engines and what they have, the one that gets all refusals first.

    A case that is answered goes to each engine that has what it needs; so do the sentinels.
    """
    able = {
        name: [engine for engine, has in engines.items() if not missing_needs(case, has)]
        for name, case in CASES.items()
    }
    chosen = {
        name: able[name] if "answer" in case or name in SENTINELS else able[name][:1]
        for name, case in CASES.items()
    }
    return [(engine, name) for engine in engines for name in CASES if engine in chosen[name]]

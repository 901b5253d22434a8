# SPDX-License-Identifier: Apache-2.0
"""What the shadow of a rollout has found, as comparisons: one for each model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.rollout.compare import Comparison, Shown, summary
from tritonctl.rollout.measures import Measured
from tritonctl.rollout.shadow.found import KEPT, read_found

_MOST_KEPT = 100_000
_NOT_PROMPT = ("at", "model", "answers")


def found_comparisons(
    folder: Path, names: tuple[str, str], *, tolerated: float, shown: bool
) -> list[Comparison]:
    """Of a rollout's folder, by model; [] where nothing was compared yet.

    names: of stable and the candidate. shown: examples have what was kept of prompts and answers.
    """
    by_model: dict[tuple[str, str], list[tuple[float, Measured]]] = {}
    for one in read_found(folder):
        by_model.setdefault((one.model, one.task), []).append((one.at, one.measured))
    kept = _kept(folder) if shown else {}
    comparisons = []
    for (model, task), some in by_model.items():
        quoted = {
            number: kept[model, at]
            for number, (at, _) in enumerate(some, start=1)
            if (model, at) in kept
        }
        measured = [one for _, one in some]
        comparisons.append(
            summary(measured, names, (model, task), tolerated=tolerated, quoted=quoted)
        )
    return comparisons


def _kept(folder: Path) -> Mapping[tuple[str, float], Shown]:
    """Prompts and answers by model and time; {} where none were kept."""
    found: dict[tuple[str, float], Shown] = {}
    try:
        with (folder / KEPT).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                record = _record(line)
                if record is not None and len(found) < _MOST_KEPT:
                    found[record["model"], record["at"]] = _shown(record)
    except FileNotFoundError:
        return {}
    return found


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        answers = record["answers"]
        known = isinstance(record["at"], float) and isinstance(record["model"], str)
        texts = all(isinstance(answers[name], str) for name in ("first", "candidate"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if known and texts else None


def _shown(record: Mapping[str, Any]) -> Shown:
    prompt = {name: value for name, value in record.items() if name not in _NOT_PROMPT}
    text = json.dumps(prompt, ensure_ascii=False, indent=1)
    return Shown(text, record["answers"]["first"], record["answers"]["candidate"])

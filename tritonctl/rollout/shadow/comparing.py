# SPDX-License-Identifier: Apache-2.0
"""The results of a rollout's shadower as comparisons, one per model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.rollout.compare import ExampleTexts, VersionComparison, summarize_measurements
from tritonctl.rollout.measures import Measurement
from tritonctl.rollout.shadow.comparison_log import PROMPTS, read_comparison_records

_MAX_PROMPTS = 100_000
_NOT_PROMPT = ("at", "model", "answers")


def shadow_comparisons(
    folder: Path, names: tuple[str, str], *, tolerated: float, show_texts: bool
) -> list[VersionComparison]:
    """Compare per model from a rollout's folder; [] if nothing was compared yet.

    names: of stable and the candidate. show_texts: examples include recorded prompts and answers.
    """
    by_model: dict[tuple[str, str], list[tuple[float, Measurement]]] = {}
    for record in read_comparison_records(folder):
        by_model.setdefault((record.model, record.task), []).append((record.at, record.measurement))
    saved_texts = _saved_texts(folder) if show_texts else {}
    comparisons = []
    for (model, task), timed_measurements in by_model.items():
        quoted = {
            number: saved_texts[model, at]
            for number, (at, _) in enumerate(timed_measurements, start=1)
            if (model, at) in saved_texts
        }
        measured = [record for _, record in timed_measurements]
        comparisons.append(
            summarize_measurements(
                measured, names, (model, task), tolerated=tolerated, quoted=quoted
            )
        )
    return comparisons


def _saved_texts(folder: Path) -> Mapping[tuple[str, float], ExampleTexts]:
    """Recorded prompts and answers by model and time; {} if none were recorded."""
    texts: dict[tuple[str, float], ExampleTexts] = {}
    try:
        with (folder / PROMPTS).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                record = _record(line)
                if record is not None and len(texts) < _MAX_PROMPTS:
                    texts[record["model"], record["at"]] = _example_texts(record)
    except FileNotFoundError:
        return {}
    return texts


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        answers = record["answers"]
        has_key = isinstance(record["at"], float) and isinstance(record["model"], str)
        has_texts = all(isinstance(answers[name], str) for name in ("first", "candidate"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if has_key and has_texts else None


def _example_texts(record: Mapping[str, Any]) -> ExampleTexts:
    prompt = {name: value for name, value in record.items() if name not in _NOT_PROMPT}
    text = json.dumps(prompt, ensure_ascii=False, indent=1)
    return ExampleTexts(text, record["answers"]["first"], record["answers"]["candidate"])

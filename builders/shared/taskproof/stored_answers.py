# SPDX-License-Identifier: Apache-2.0
"""Stores the reference's answers with a proof. Needs numpy.

The proof of a compiled engine uses them, because its environment lacks the reference library.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from taskproof.answers import CaseAnswer

ANSWERS, REPORT = "answers.npz", "report.json"


def store_answers(
    folder: Path,
    expected: Sequence[CaseAnswer],
    report: dict[str, Any],
    *,
    allow_left_padding: bool,
) -> None:
    """Write the answer of each case and the proof's report."""
    arrays: dict[str, Any] = {}
    for number, answer in enumerate(expected):
        arrays[f"ids.{number}"] = np.array(answer.ids, dtype=np.int64)
        if answer.types is not None:
            arrays[f"types.{number}"] = np.array(answer.types, dtype=np.int64)
        if answer.values is not None:
            arrays[f"values.{number}"] = answer.values
    entities = [answer.entities for answer in expected]
    _write(folder, arrays, report | {"entities": entities, "either_side": allow_left_padding})


def load_answers(folder: Path) -> list[CaseAnswer]:
    """Return the answer of each case. Raises BuildError if they are unreadable."""
    arrays, entities = _load_arrays(folder), load_report(folder)["entities"]
    answers = []
    for number, spans in enumerate(entities):
        types = arrays.get(f"types.{number}")
        answers.append(
            CaseAnswer(
                tuple(arrays[f"ids.{number}"].tolist()),
                None if types is None else tuple(types.tolist()),
                arrays.get(f"values.{number}"),
                tuple((label, start, end) for label, start, end in spans),
            )
        )
    return answers


def store_vectors(folder: Path, answers: Any, report: dict[str, Any]) -> None:
    """Write scores or vectors FP32[images, n] and the proof's report."""
    _write(folder, {"answers": answers}, report)


def load_vectors(folder: Path) -> Any:
    """Return scores or vectors FP32[images, n]. Raises BuildError if they are unreadable."""
    return _load_arrays(folder)["answers"]


def load_report(folder: Path) -> dict[str, Any]:
    """Return the proof's report. Raises BuildError if it is unreadable."""
    try:
        report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(folder / REPORT, error) from error
    return report


def _write(folder: Path, arrays: dict[str, Any], report: dict[str, Any]) -> None:
    np.savez(folder / ANSWERS, **arrays)
    text = json.dumps(report, indent=1, ensure_ascii=False)
    (folder / REPORT).write_text(text + "\n", encoding="utf-8")


def _load_arrays(folder: Path) -> dict[str, Any]:
    try:
        with np.load(folder / ANSWERS, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise _unreadable(folder / ANSWERS, error) from error


def _unreadable(file: Path, error: Exception) -> BuildError:
    return BuildError(
        f"{file}: the export stage left no answers of the reference: {error}",
        remedy="Export again: tritonctl build --force.",
    )

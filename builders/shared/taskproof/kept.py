# SPDX-License-Identifier: Apache-2.0
"""The reference's answers, kept beside a proof for the next one: of what is compiled of the graph,
where the reference library is not. Needs numpy.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from taskproof.answers import Answer

ANSWERS, REPORT = "answers.npz", "report.json"


def keep_answers(
    folder: Path, expected: Sequence[Answer], report: dict[str, Any], *, either_side: bool
) -> None:
    """Write each case's answer, and what the proof reported."""
    arrays: dict[str, Any] = {}
    for number, one in enumerate(expected):
        arrays[f"ids.{number}"] = np.array(one.ids, dtype=np.int64)
        if one.types is not None:
            arrays[f"types.{number}"] = np.array(one.types, dtype=np.int64)
        if one.values is not None:
            arrays[f"values.{number}"] = one.values
    entities = [one.entities for one in expected]
    _write(folder, arrays, report | {"entities": entities, "either_side": either_side})


def kept_answers(folder: Path) -> list[Answer]:
    """Each case's answer. Raises BuildError where they cannot be read."""
    arrays, entities = _arrays(folder), kept_report(folder)["entities"]
    made = []
    for number, found in enumerate(entities):
        types = arrays.get(f"types.{number}")
        made.append(
            Answer(
                tuple(arrays[f"ids.{number}"].tolist()),
                None if types is None else tuple(types.tolist()),
                arrays.get(f"values.{number}"),
                tuple((label, start, end) for label, start, end in found),
            )
        )
    return made


def keep_vectors(folder: Path, answers: Any, report: dict[str, Any]) -> None:
    """Write scores or vectors FP32[images, n], and what the proof reported."""
    _write(folder, {"answers": answers}, report)


def kept_vectors(folder: Path) -> Any:
    """Scores or vectors FP32[images, n]. Raises BuildError where they cannot be read."""
    return _arrays(folder)["answers"]


def kept_report(folder: Path) -> dict[str, Any]:
    """What the proof reported. Raises BuildError where it cannot be read."""
    try:
        report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(folder / REPORT, error) from error
    return report


def _write(folder: Path, arrays: dict[str, Any], report: dict[str, Any]) -> None:
    np.savez(folder / ANSWERS, **arrays)
    text = json.dumps(report, indent=1, ensure_ascii=False)
    (folder / REPORT).write_text(text + "\n", encoding="utf-8")


def _arrays(folder: Path) -> dict[str, Any]:
    try:
        with np.load(folder / ANSWERS, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise _damaged(folder / ANSWERS, error) from error


def _damaged(file: Path, error: Exception) -> BuildError:
    return BuildError(
        f"{file}: the stage before left no answers of the reference: {error}",
        remedy="Make it again: tritonctl build --force.",
    )

# SPDX-License-Identifier: Apache-2.0
"""Makes small checkpoints and builds each, all in one process of the ONNX Runtime builder's
environment: imports, which are most of a small build's time, happen once.

python task_builds.py FOLDER < BUILDS

BUILDS, JSON: a list of `name`, `checkpoint` (a specification of tiny_task.py, or a folder) and
`request` (changes to a build request). Leaves FOLDER/NAME/S.json of each: the build's result.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# First: many environments have a package named build.
sys.path[:0] = [str(ROOT), str(ROOT / "builders" / "onnxruntime")]
tiny_task = importlib.import_module("tests.tiny_task")
build = importlib.import_module("build")


def checkpoint_of(wanted: Any, folder: Path) -> Path:
    """The checkpoint's folder, made if it is a specification."""
    if isinstance(wanted, str):
        return Path(wanted)
    tiny_task.write(folder, wanted)
    return folder


def built(one: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The result of one build, as the program would write it."""
    program = importlib.import_module("buildlib.program")
    checkpoint = checkpoint_of(one["checkpoint"], folder / "checkpoint")
    asked = {
        "schema": "tritonctl.build/1",
        "model": "m",
        "checkpoint": str(checkpoint),
        "precision": "fp32",
        "limits": {"max_batch_size": 8},
        **one["request"],
    }
    file = folder / "R.json"
    file.write_text(json.dumps(asked), encoding="utf-8")
    (folder / "staging").mkdir()
    os.chdir(folder / "staging")
    progress = program.Stages(("load", "export", "convert", "evaluate"))
    try:
        return {"status": "ok", **build.build(file, progress)}
    except Exception as error:
        problem = program.to_build_error(error, progress.current)
        return {"status": "failed", "problem": problem.problem, "remedy": problem.remedy}


def main() -> None:
    """Build what standard input asks for."""
    root = Path(sys.argv[1]).resolve()
    for one in json.load(sys.stdin):
        folder = root / one["name"]
        folder.mkdir(parents=True)
        result = built(one, folder)
        (folder / "S.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()

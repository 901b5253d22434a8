# SPDX-License-Identifier: Apache-2.0
"""The first stage of a task's engine: exported by the builder onnxruntime, kept across tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.builders.warm import make_warm
from tests.engine_cache import content, kept
from tests.sample_images import encoded, smooth

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SOURCES = (
    *("builders/onnxruntime", "builders/shared", "python_backends/tasklib"),
    *(
        "tests/tiny_encoder.py",
        "tests/tiny_task.py",
        "tests/tiny_vision.py",
        "tests/task_builds.py",
    ),
)
ROWS = 4
# Ranges of one picture, in whatever sizes, cut the answers to all others.
IMAGES = 8
TEXTS = ["Paris is the capital of France.", "A cat sits on the mat.", "it rains", "3 + 4 = 7"]


@dataclass(frozen=True)
class Exported:
    """An artefact of the first stage: its folder, the request that made it."""

    folder: Path
    request: dict[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        """The build's."""
        made: dict[str, Any] = json.loads((self.folder.parent / "S.json").read_text("utf-8"))
        return made


Export = Callable[..., Exported]


def calibration_data(folder: Path) -> dict[str, Path]:
    """What int8 is calibrated on: texts, pairs of a reranker, a folder of images."""
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (folder / "images").mkdir()
    for seed in range(IMAGES):
        image = smooth(48 + seed, 40, seed=seed)
        (folder / "images" / f"{seed}.png").write_bytes(encoded(image, "PNG"))
    pairs = [json.dumps({"query": "Is it so?", "text": text}) for text in TEXTS]
    (folder / "pairs.jsonl").write_text("\n".join(pairs), encoding="utf-8")
    made = {"texts": folder / "texts.txt", "rerank": folder / "pairs.jsonl"}
    return made | {"images": folder / "images"}


def calibration_of(task: str, data: dict[str, Path]) -> dict[str, Any]:
    """The `calibration` of a request for int8."""
    kind = "images" if task.startswith("image") else "texts"
    limits = {"samples": 8, "max_seq_len": 24, "batch_size": 1, "seed": 1}
    return {"data": str(data.get(task, data[kind])), **limits}


def export_task(
    python: Path,
    calibration: dict[str, Path],
    into: Path,
    task: str,
    checkpoint: Any,
    precision: str = "fp16",
) -> Exported:
    """Export a checkpoint of tests/tiny_task.py or tests/tiny_vision.py, or a folder, in `python`,
    the interpreter of the builder onnxruntime.
    """
    request: dict[str, Any] = {
        "task": task,
        "precision": precision,
        "stage": "export",
        "limits": {"max_batch_size": ROWS},
    }
    if precision == "int8":
        request["calibration"] = calibration_of(task, calibration)

    def make(entry: Path) -> None:
        given = checkpoint
        if isinstance(checkpoint, str):
            given = str(entry / "checkpoint")
            script = TESTS / "tiny_vision.py"
            make_warm(python, script, checkpoint, given)
        given = str(given) if isinstance(given, Path) else given
        one = {"name": "one", "checkpoint": given, "request": request}
        make_warm(python, TESTS / "task_builds.py", entry, text=json.dumps([one]))
        result = json.loads((entry / "one" / "S.json").read_text("utf-8"))
        assert result["status"] == "ok", result

    inputs = {
        "sources": [content(ROOT / source) for source in SOURCES],
        "python": python.parents[1].name,
        "checkpoint": content(checkpoint) if isinstance(checkpoint, Path) else checkpoint,
        "request": {key: value for key, value in request.items() if key != "calibration"},
        "calibration": {name: content(path) for name, path in sorted(calibration.items())},
    }
    return Exported(kept("exported", inputs, make, into) / "one" / "staging", request)

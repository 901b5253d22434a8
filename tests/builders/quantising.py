# SPDX-License-Identifier: Apache-2.0
"""Runs the stage quantise of the TensorRT-LLM builder as the host does, in its own environment."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.builders.exported import Array, tensors_of
from tritonctl.engines.build.catalog import builder_named
from tritonctl.engines.build.runners import venv_python
from tritonctl.host.progress import Silent

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = CHECKOUT / "builders" / "tensorrt_llm" / "quantise.py"
EXAMPLE = CHECKOUT / "examples" / "number-speller"


@dataclass(frozen=True)
class Quantised:
    """One run of quantise.py: exit status, result, output, and the checkpoint it left."""

    code: int
    result: dict[str, Any]
    output: str
    staging: Path

    @property
    def checkpoint(self) -> Path:
        """The folder of the exported checkpoint."""
        return self.staging / "checkpoint"

    def config(self, name: str = "config.json") -> dict[str, Any]:
        """One of the checkpoint's JSON files."""
        value: dict[str, Any] = json.loads((self.checkpoint / name).read_text(encoding="utf-8"))
        return value

    def tensors(self, rank: int | None = 0) -> dict[str, Array]:
        """The tensors of one rank; None: of a unified checkpoint."""
        name = "model.safetensors" if rank is None else f"rank{rank}.safetensors"
        return tensors_of(self.checkpoint / name)


def environment() -> Path:
    """The interpreter of the stage's cached environment, made on first use."""
    builder = builder_named("tensorrt_llm")
    return venv_python(builder, Silent(), builder.stages[0])


def request(**changes: Any) -> dict[str, Any]:
    """A request on few prompts."""
    prompts = str(EXAMPLE / "prompts.jsonl")
    sizes = {"samples": 16, "max_seq_len": 24, "batch_size": 16, "seed": 1}
    evaluation = {"prompts": prompts, "max_prompts": 4, "max_tokens": 64}
    return {
        "schema": "tritonctl.build/1",
        "model": "speller",
        "checkpoint": str(EXAMPLE / "checkpoint"),
        "precision": "fp8",
        "limits": {"max_batch_size": 4, **changes.pop("limits", {})},
        "stage": "quantise",
        "target": {"release": "26.07", "world": changes.pop("world", "engine")},
        "calibration": {"data": prompts, **sizes, **changes.pop("calibration", {})},
        "evaluation": evaluation | changes.pop("evaluation", {}),
        **changes,
    }


def run(python: Path, folder: Path, **changes: Any) -> Quantised:
    """Run quantise.py in `folder` with changes to a small request."""
    (folder / "staging").mkdir()
    (folder / "R.json").write_text(json.dumps(request(**changes)), encoding="utf-8")
    files = ["--request", str(folder / "R.json"), "--result", str(folder / "S.json")]
    done = subprocess.run(
        [str(python), str(PROGRAM), *files],
        cwd=folder / "staging",
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    result = json.loads((folder / "S.json").read_text(encoding="utf-8"))
    return Quantised(done.returncode, result, done.stdout, folder / "staging")


def ok(done: Quantised) -> Quantised:
    """The run, if it succeeded."""
    assert done.code == 0, done.result
    return done

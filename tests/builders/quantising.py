# SPDX-License-Identifier: Apache-2.0
"""Runs the stage quantise of the TensorRT-LLM builder as the host does, in its own environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.builders import runs
from tests.builders.exported import Array, tensors_of
from tests.builders.runs import Built
from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.runners import venv_python
from tritonctl.host.progress import Silent

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = CHECKOUT / "builders" / "tensorrt_llm" / "quantise.py"
EXAMPLE = CHECKOUT / "examples" / "number-speller"


class Quantised(Built):
    """One run of quantise.py, and the checkpoint it left."""

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


def run(python: Path, folder: Path, *, fresh: bool = False, **changes: Any) -> Quantised:
    """Run quantise.py in `folder` with changes to a small request.

    `fresh`: also where an equal run was kept.
    """
    done = (runs.run if fresh else runs.run_kept)(python, PROGRAM, request(**changes), folder)
    return Quantised(done.code, done.result, done.output, done.staging)


def ok(done: Quantised) -> Quantised:
    """The run, if it succeeded."""
    assert done.code == 0, done.result
    return done

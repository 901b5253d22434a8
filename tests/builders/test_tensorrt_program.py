# SPDX-License-Identifier: Apache-2.0
"""The TensorRT builder's program over a stand-in for TensorRT and nvidia-smi.

What it asks of TensorRT, in which order, and what it says when that refuses. The build itself is
in test_tensorrt_build.py, which needs a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.conftest import STAND_IN

BUILD = Path(__file__).resolve().parents[2] / "builders" / "tensorrt" / "build.py"
GRAPH = {
    "inputs": [["x", "FLOAT", [-1, 8]], ["mask", "BOOL", [-1, 8]]],
    "outputs": [["y", "HALF", [-1, -1, 4]]],
}
TARGET = {
    "release": "26.07",
    "triton": "2.71.0",
    "world": "engine",
    "tensorrt": "10.14.1.48",
    "compute_capability": "9.0",
}


@dataclass(frozen=True)
class Built:
    """One run of build.py."""

    result: dict[str, Any]
    output: str
    staging: Path

    @property
    def plan(self) -> dict[str, Any]:
        """What the stand-in was asked for."""
        content: dict[str, Any] = json.loads((self.staging / "engine/model.plan").read_bytes())
        return content


Build = Callable[..., Built]


@pytest.fixture
def build(driver: Path, tmp_path: Path) -> Build:
    """Runs build.py on a graph, beside a GPU of compute capability 9.0."""
    environment = {
        "PATH": f"{driver}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(driver),
        "PYTHONPATH": str(STAND_IN),
    }

    def run(graph: dict[str, Any] | str = GRAPH, precision: str = "fp16", **changes: Any) -> Built:
        text = graph if isinstance(graph, str) else json.dumps(graph)
        (tmp_path / "model.onnx").write_text(text, encoding="utf-8")
        asked = {
            "schema": "tritonctl.build/1",
            "model": "m",
            "checkpoint": str(tmp_path),
            "precision": precision,
            "limits": {"max_batch_size": 16},
            "target": TARGET,
            **changes,
        }
        (tmp_path / "R.json").write_text(json.dumps(asked), encoding="utf-8")
        staging = tmp_path / "staging"
        staging.mkdir()
        files = ["--request", str(tmp_path / "R.json"), "--result", str(tmp_path / "S.json")]
        done = subprocess.run(
            [sys.executable, str(BUILD), *files],
            cwd=staging,
            env=os.environ | environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        result = json.loads((tmp_path / "S.json").read_text(encoding="utf-8"))
        assert (done.returncode == 0) == (result["status"] == "ok"), done.stderr
        return Built(result, done.stdout, staging)

    return run


def test_a_plan_with_its_border_and_profiles(build: Build) -> None:
    done = build()
    assert done.result["status"] == "ok", done.result
    assert done.result["tensors"] == {
        "inputs": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [8]},
            {"name": "mask", "data_type": "TYPE_BOOL", "dims": [8]},
        ],
        "outputs": [{"name": "y", "data_type": "TYPE_FP16", "dims": [-1, 4]}],
    }
    names = [entry["path"] for entry in done.result["files"]]
    assert names == ["engine/model.plan", "timing/timing.cache"]
    shapes = {"min": [1, 8], "opt": [16, 8], "max": [16, 8]}
    assert done.result["runtime"]["profiles"] == [{"x": shapes, "mask": shapes}]
    assert done.plan["profiles"] == [{name: list(shapes.values()) for name in ("x", "mask")}]
    assert done.result["hardware"]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert done.result["versions"]["tensorrt"] == "10.14.1.48"
    assert list(done.result["durations_seconds"]) == ["load", "compile", "evaluate"]
    assert "@stage compile\nBuilding Engine (1 steps)\n" in done.output


@pytest.mark.parametrize(
    ("precision", "quantised", "flags"),
    [
        ("fp32", [], ["TF32"]),
        ("fp16", [], ["FP16", "TF32"]),
        ("int8", ["INT8"], ["FP16", "INT8", "TF32"]),
        ("int8", ["FLOAT"], ["FP16", "INT8", "TF32"]),
        ("fp8", ["FP8"], ["FP16", "FP8", "TF32"]),
    ],
)
def test_flags_of_a_precision(
    build: Build, precision: str, quantised: list[str], flags: list[str]
) -> None:
    done = build(GRAPH | {"quantised": quantised}, precision)
    assert done.plan["flags"] == flags
    assert done.plan["strongly_typed"] is False


def test_a_strongly_typed_network_gets_no_flags(build: Build) -> None:
    done = build(GRAPH | {"quantised": ["FP8"]}, "fp8", options={"strongly_typed": True})
    assert done.plan["flags"] == ["TF32"]
    assert done.plan["strongly_typed"] is True


def test_settings_reach_tensorrt(build: Build) -> None:
    options = {
        "tf32": False,
        "version_compatible": True,
        "workspace_mib": 512,
        "builder_optimization_level": 5,
        "hardware_compatibility": "ampere_plus",
    }
    plan = build(precision="fp32", options=options).plan
    assert plan["flags"] == ["VERSION_COMPATIBLE"]
    assert plan["workspace"] == 512 << 20
    assert (plan["level"], plan["hardware"]) == (5, "AMPERE_PLUS")


def test_the_timing_cache_is_kept_and_used(build: Build, tmp_path: Path) -> None:
    (tmp_path / "earlier.cache").write_bytes(b"earlier;")
    done = build(options={"timing_cache": "earlier.cache"})
    assert (done.staging / "timing" / "timing.cache").read_bytes() == b"earlier;times;"


def test_a_timing_cache_of_another_device(build: Build, tmp_path: Path) -> None:
    (tmp_path / "earlier.cache").write_bytes(b"other device")
    done = build(options={"timing_cache": "earlier.cache"})
    assert "timing cache is of another GPU or another TensorRT" in done.result["problem"]


def samples(folder: Path, *rows: int) -> dict[str, Any]:
    """The calibration of a request: one sample for each number of rows."""
    folder.mkdir()
    for number, count in enumerate(rows):
        x = np.full((count, 8), number, dtype=np.float32)
        np.savez(folder / f"{number}.npz", x=x, mask=np.ones((count, 8), dtype=np.bool_))
    return {"data": str(folder), "samples": 2, "max_seq_len": 1, "batch_size": 1, "seed": 1}


def test_int8_calibrated_on_samples(build: Build, tmp_path: Path) -> None:
    done = build(precision="int8", calibration=samples(tmp_path / "samples", 4, 4, 4))
    # Two of the three samples, as asked; both inputs of each.
    assert done.plan["calibrated"] == [[0.0, 2], [1.0, 2]]
    assert done.plan["flags"] == ["FP16", "INT8", "TF32"]
    assert (done.staging / "timing" / "calibration.cache").read_bytes() == b"ranges"


def test_samples_of_different_shapes(build: Build, tmp_path: Path) -> None:
    done = build(precision="int8", calibration=samples(tmp_path / "samples", 4, 5))
    assert "x has the shape [5, 8], and 0.npz has [4, 8]" in done.result["problem"]


def test_samples_without_an_input(build: Build, tmp_path: Path) -> None:
    calibration = samples(tmp_path / "samples", 4)
    np.savez(tmp_path / "samples" / "0.npz", x=np.zeros((4, 8), dtype=np.float32))
    done = build(precision="int8", calibration=calibration)
    assert "has nothing for the input mask, which takes bool[-1, 8]" in done.result["problem"]


def test_a_gpu_that_tensorrt_cannot_use(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """It warns, and its binding raises a TypeError that says nothing."""
    monkeypatch.setenv("STAND_IN_NO_CUDA", "1")
    done = build()
    words = "TensorRT cannot use the GPU: CUDA initialization failure with error: 35"
    assert done.result["problem"].startswith(words)


@pytest.mark.parametrize(
    ("graph", "changes", "words"),
    [
        ("no graph", {}, "TensorRT 10.14.1.48 cannot parse it: Failed to parse ONNX model"),
        (
            GRAPH | {"fails": "Could not find any implementation for node"},
            {},
            "made no plan: Could",
        ),
        (
            GRAPH | {"foreign": ["Gelu", "Gelu", "Polish"]},
            {},
            "cannot parse it: Gelu (node 0): Plugin not found; Polish (node 2): Plugin not found",
        ),
        (GRAPH | {"unloadable": True}, {}, "cannot load the plan that it has just made"),
        (GRAPH, {"precision": "int8"}, "precision int8 needs scales"),
        (GRAPH | {"outputs": [["y", "FP8", [-1, 4]]]}, {}, "y is of the type FP8"),
        (
            GRAPH,
            {"target": TARGET | {"tensorrt": "10.13.3.9"}},
            "the target's server has 10.13.3.9",
        ),
        (GRAPH, {"target": TARGET | {"compute_capability": "8.9"}}, "the engine is for 8.9"),
    ],
)
def test_what_cannot_be_built(
    build: Build, graph: dict[str, Any] | str, changes: dict[str, Any], words: str
) -> None:
    done = build(graph, **changes)
    assert done.result["status"] == "failed"
    assert words in done.result["problem"]

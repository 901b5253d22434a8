# SPDX-License-Identifier: Apache-2.0
"""Real plans on a real GPU: `pytest --run-gpu --gpu-python PYTHON`, which has TensorRT 10.

Inside NVIDIA's TensorRT-LLM image that is its own python3 (it has torch, too).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.engine]

TESTS = Path(__file__).resolve().parents[1]
BUILD = TESTS.parent / "builders" / "tensorrt" / "build.py"
MOST_ROWS = 8

Build = Callable[..., tuple[dict[str, Any], Path]]


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter that has TensorRT."""
    return str(request.config.getoption("--gpu-python"))


@pytest.fixture(scope="session")
def graphs(onnxruntime_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small graphs of tests/onnx_graphs.py."""
    folder = tmp_path_factory.mktemp("graphs")
    script = TESTS / "onnx_graphs.py"
    subprocess.run([onnxruntime_environment, script, folder, "plain", "external"], check=True)
    return folder


@pytest.fixture
def build(python: str, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Run build.py as the host does: its result and its working directory."""

    def run(
        checkpoint: Path, precision: str = "fp32", **changes: Any
    ) -> tuple[dict[str, Any], Path]:
        folder = tmp_path_factory.mktemp("build")
        asked = {
            "schema": "tritonctl.build/1",
            "model": "m",
            "checkpoint": str(checkpoint),
            "precision": precision,
            "limits": {"max_batch_size": MOST_ROWS},
            **changes,
        }
        (folder / "staging").mkdir()
        (folder / "R.json").write_text(json.dumps(asked), encoding="utf-8")
        files = ["--request", str(folder / "R.json"), "--result", str(folder / "S.json")]
        subprocess.run([python, str(BUILD), *files], cwd=folder / "staging", check=False)
        result: dict[str, Any] = json.loads((folder / "S.json").read_text(encoding="utf-8"))
        return result, folder / "staging"

    return run


def answer(python: str, staging: Path, x: Any) -> Any:
    """What the plan answers, on the GPU."""
    np.savez(staging / "inputs.npz", x=x)
    files = [staging / "engine/model.plan", staging / "inputs.npz", staging / "outputs.npz"]
    subprocess.run([python, TESTS / "tensorrt_run.py", *files], check=True)
    with np.load(staging / "outputs.npz") as outputs:
        return outputs["y"]


def product(x: Any) -> Any:
    """What the graph `external` computes; its weights are seeded."""
    weights = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)
    return x @ weights


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 0.1), ("fp16", 0.3)])
@pytest.mark.parametrize("rows", [1, 3, MOST_ROWS])
def test_a_plan_answers_as_its_graph(
    build: Build, graphs: Path, python: str, precision: str, tolerance: float, rows: int
) -> None:
    result, staging = build(graphs / "external", precision)
    assert result["status"] == "ok", result
    assert result["tensors"]["inputs"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [64]}]
    assert result["hardware"]["gpu"]
    x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    np.testing.assert_allclose(answer(python, staging, x), product(x), atol=tolerance)


def test_int8_calibrated_on_samples(
    build: Build, graphs: Path, python: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(2)
    for number in range(32):
        x = random.standard_normal((MOST_ROWS, 64)).astype(np.float32)
        np.savez(tmp_path / f"{number:02}.npz", x=x)
    limits = {"samples": 32, "max_seq_len": 1, "batch_size": 1, "seed": 1}
    calibration = {"data": str(tmp_path), **limits}
    result, staging = build(graphs / "external", "int8", calibration=calibration)
    assert result["status"] == "ok", result
    assert (staging / "timing" / "calibration.cache").is_file()
    x = random.standard_normal((4, 64)).astype(np.float32)
    np.testing.assert_allclose(answer(python, staging, x), product(x), atol=3.0)


def test_int8_without_scales_is_refused(build: Build, graphs: Path) -> None:
    result, _ = build(graphs / "plain", "int8")
    assert "precision int8 needs scales" in result["problem"]


def test_the_timing_cache_serves_the_next_build(build: Build, graphs: Path, tmp_path: Path) -> None:
    _, first = build(graphs / "plain", "fp16")
    shutil.copyfile(graphs / "plain" / "model.onnx", tmp_path / "model.onnx")
    shutil.copyfile(first / "timing" / "timing.cache", tmp_path / "timing.cache")
    result, _ = build(tmp_path, "fp16", options={"timing_cache": "timing.cache"})
    assert result["status"] == "ok", result

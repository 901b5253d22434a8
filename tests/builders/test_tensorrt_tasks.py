# SPDX-License-Identifier: Apache-2.0
"""Tasks as TensorRT plans: exported and proven for real on a CPU, compiled by a stand-in.

The stand-in of TensorRT runs the exported graph with ONNX Runtime in memory that a stand-in of the
GPU's driver gives, so profiles, addresses and the proof of a plan are what a GPU would see. Real
plans are marked `gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.builders.conftest import STAND_IN
from tests.builders.runs import run
from tests.builders.task_exports import ROWS, Export, Exported

pytestmark = pytest.mark.engine
exhaustive = pytest.mark.exhaustive

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
BUILD = ROOT / "builders" / "tensorrt" / "build.py"
TARGET = {
    "release": "26.07",
    "triton": "2.71.0",
    "world": "engine",
    "tensorrt": "10.14.1.48",
    "compute_capability": "9.0",
}
POOLED = {"steps": [["Pooling", {"pooling_mode": "mean"}], ["Normalize", {}]]}


@dataclass(frozen=True)
class Compiled:
    """One run of the second."""

    result: dict[str, Any]
    folder: Path


Compile = Callable[..., Compiled]


@pytest.fixture(scope="session")
def compiled(
    onnxruntime_environment: Path, driver: Path, tmp_path_factory: pytest.TempPathFactory
) -> Compile:
    """Runs the second stage, where ONNX Runtime is; `noise`: how wrong the plan answers."""

    def built(
        source: Exported, *, noise: float = 0, libraries: str = "", **changes: Any
    ) -> Compiled:
        folder = tmp_path_factory.mktemp("compile")
        asked = {
            "schema": "tritonctl.build/1",
            "model": "m",
            "checkpoint": str(source.folder),
            **source.request,
            "stage": "compile",
            "source": str(source.folder),
            "target": TARGET,
            **changes,
        }
        (folder / "R.json").write_text(json.dumps(asked), encoding="utf-8")
        (folder / "staging").mkdir()
        files = ["--request", "../R.json", "--result", "../S.json"]
        environment = os.environ | {
            "PATH": f"{driver}{os.pathsep}{os.environ['PATH']}",
            "LD_LIBRARY_PATH": libraries or str(driver),
            "PYTHONPATH": str(STAND_IN),
            "STAND_IN_NOISE": str(noise),
        }
        subprocess.run(
            [onnxruntime_environment, BUILD, *files],
            cwd=folder / "staging",
            env=environment,
            capture_output=True,
            check=False,
        )
        result = json.loads((folder / "S.json").read_text(encoding="utf-8"))
        return Compiled(result, folder / "staging")

    return built


def figures(result: dict[str, Any]) -> dict[str, float]:
    """The measures of the proof."""
    assert result["status"] == "ok", result
    return {one["name"]: one["value"] for one in result["proof"]["figures"]}


@pytest.fixture(scope="session")
def encoder(export: Export) -> Exported:
    """A small sentence encoder in fp16."""
    return export("embedding", {"class": "BertModel", **POOLED})


def test_a_plan_of_a_task_is_proven_and_whole(encoder: Exported, compiled: Compile) -> None:
    """With what its steps need, profiles by tokens, and the proof of the export carried on."""
    done = compiled(encoder)
    measured = figures(done.result)
    assert measured["tokens"] == 1
    assert 1 - 1e-4 < measured["cosine"] <= 1
    before = encoder.result["proof"]
    assert done.result["proof"]["controls"] == before["controls"]
    assert done.result["proof"]["reference"] == before["reference"]
    assert [one["path"] for one in done.result["files"] if "tokenizer" not in one["path"]] == [
        "engine/model.plan",
        "proof/cases.json",
        "task/task.json",
        "timing/timing.cache",
    ]
    assert (done.folder / "tokenizer" / "tokenizer.json").is_file()
    plan = json.loads((done.folder / "engine" / "model.plan").read_bytes())
    assert (plan["flags"], plan["strongly_typed"]) == ([], True)
    longest = done.result["limits"]["max_seq_len"]
    shapes = [one["input_ids"] for one in done.result["runtime"]["profiles"]]
    assert shapes[0] == {"min": [1, 1], "opt": [ROWS, 32], "max": [ROWS, 32]}
    assert shapes[-1]["max"] == [ROWS, longest]
    assert done.result["tensors"] == encoder.result["tensors"]


def test_a_plan_that_answers_otherwise_fails(encoder: Exported, compiled: Compile) -> None:
    """Told with the measure and its bound; a bound of the user's own moves it."""
    wrong = compiled(encoder, noise=0.05).result
    assert wrong["status"] == "failed"
    assert "the fp16 engine does not answer as sentence-transformers" in wrong["problem"]
    assert "cosine is 0.9" in wrong["problem"]
    assert "engine.options.bounds" in wrong["remedy"]


def test_profiles_that_the_task_outgrows(encoder: Exported, compiled: Compile) -> None:
    """Texts longer than the project's own profile."""
    shape = {"min": [1, 1], "opt": [ROWS, 8], "max": [ROWS, 8]}
    names = [tensor["name"] for tensor in encoder.result["tensors"]["inputs"]]
    done = compiled(encoder, options={"profiles": dict.fromkeys(names, shape)}).result
    assert "no profile of the plan takes" in done["problem"]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_real_plan_of_a_task(
    export: Export, request: pytest.FixtureRequest, tmp_path: Path, precision: str
) -> None:
    """`--gpu-python` has TensorRT and what builders/tensorrt/requirements.txt lists."""
    source = export("embedding", {"class": "BertModel", **POOLED}, precision)
    changes = {"checkpoint": str(source.folder), "stage": "compile", "source": str(source.folder)}
    asked = {"schema": "tritonctl.build/1", "model": "m", **source.request, **changes}
    done = run(Path(request.config.getoption("--gpu-python")), BUILD, asked, tmp_path)
    assert done.code == 0, done.result
    assert figures(done.result)["tokens"] == 1
    assert done.result["hardware"]["gpu"]


@exhaustive
def test_a_machine_without_a_driver(encoder: Exported, compiled: Compile, tmp_path: Path) -> None:
    """nvidia-smi alone is no GPU."""
    done = compiled(encoder, libraries=str(tmp_path)).result
    assert "the driver's library cannot be loaded: libcuda.so.1" in done["problem"]


@exhaustive
def test_a_driver_that_shows_no_gpu(
    encoder: Exported, compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the driver's words, with what hides a GPU most often."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = compiled(encoder).result
    assert "cuInit of the GPU's driver failed: no CUDA-capable device" in done["problem"]
    assert "CUDA_VISIBLE_DEVICES" in done["remedy"]


@exhaustive
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize(
    ("task", "checkpoint"),
    [
        ("embedding", {"class": "ModernBertModel", **POOLED}),
        (
            "classification",
            {"class": "DebertaV2ForSequenceClassification", "config": {"num_labels": 3}},
        ),
        ("rerank", {"class": "RobertaForSequenceClassification", "config": {"num_labels": 1}}),
        (
            "token_classification",
            {"class": "BertForTokenClassification", "config": {"num_labels": 5}},
        ),
        ("image_classification", "ResNetForImageClassification"),
        ("image_classification", "ConvNextForImageClassification"),
        ("image_embedding", "ViTModel"),
        ("image_embedding", "CLIPVisionModelWithProjection"),
    ],
)
def test_every_task(
    export: Export, compiled: Compile, task: str, checkpoint: Any, precision: str
) -> None:
    """Exported with operators that TensorRT parses, and the same answers as a plan."""
    source = export(task, checkpoint, precision)
    assert figures(compiled(source).result) == pytest.approx(figures(source.result), abs=1e-4)


@exhaustive
def test_clip_s_texts(export: Export, compiled: Compile) -> None:
    """The other tower, which is not quantised here."""
    source = export("embedding", "CLIPModel")
    assert figures(compiled(source).result)["cosine"] > 0.999

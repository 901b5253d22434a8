# SPDX-License-Identifier: Apache-2.0
"""`tritonctl init` of tasks for a GPU: a plan of TensorRT's, and the GPU that this machine has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import headers
from tests.unit.engines.test_image_projects import VIT, vit_shapes, write
from tritonctl.engines.planning.plans import plan_model, plan_models
from tritonctl.engines.proposals import installed_gpus as installed
from tritonctl.engines.proposals.installed_gpus import match_table_entry
from tritonctl.engines.proposals.proposal import InitOptions
from tritonctl.engines.proposals.writing import WrittenProject, write_project
from tritonctl.errors import UsageError
from tritonctl.host.gpus import InstalledGpu
from tritonctl.project.compatibility.table import table
from tritonctl.project.file import load_profiles, load_project
from tritonctl.project.schema import Model

SPELLER = Path(__file__).parents[3] / "examples" / "number-speller" / "checkpoint"
HEADS = {
    "embedding": "BertModel",
    "classification": "BertForSequenceClassification",
    "rerank": "BertForSequenceClassification",
    "token_classification": "BertForTokenClassification",
}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1"}
TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[InstalledGpu]:
    """Those of this machine: none, until a test adds one."""
    here: list[InstalledGpu] = []
    monkeypatch.setattr(installed, "installed_gpus", lambda: (here, ""))
    return here


def texts(folder: Path, task: str) -> Path:
    """A BERT of a task, on paper."""
    labels = {"id2label": {"0": "a"}} if task == "rerank" else {"id2label": {"0": "a", "1": "b"}}
    headers.write_encoder(folder, headers.BERT_BASE | {"architectures": [HEADS[task]]} | labels)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPELLER / name, folder / name)
    if task == "embedding":
        (folder / "modules.json").write_text(json.dumps([TRANSFORMER, POOLING]), encoding="utf-8")
        (folder / "1").mkdir()
        (folder / "1" / "config.json").write_text('{"pooling_mode": "mean"}', encoding="utf-8")
    return headers.stretch(folder)


def proposed(
    folder: Path, checkpoint: Path, target: str, **wishes: Any
) -> tuple[Model, WrittenProject]:
    """The model as it was written, and what was said."""
    written = write_project(folder, InitOptions("m", str(checkpoint), target, **wishes))
    return load_project(folder).models["m"], written


@pytest.mark.parametrize("task", HEADS)
def test_a_task_of_texts_becomes_a_plan(tmp_path: Path, task: str) -> None:
    """For that GPU, in fp16, served by Triton's own backend; `plan` finds that it fits."""
    folder = tmp_path / "p"
    model, written = proposed(folder, texts(tmp_path / "c", task), "l4")
    assert (model.task, model.engine.builder, model.engine.precision) == (task, "tensorrt", "fp16")
    assert (model.engine.target.gpu, model.engine.target.release) == ("L4", "26.07")
    assert model.engine.options == {}
    assert [group.kind for group in model.serving.instance_group] == ["KIND_GPU"]
    assert model.serving.backend is None
    assert any("set `engine.builder: onnxruntime`" in reason for reason in written.reasons)
    project = load_project(folder)
    assert project.server.mode == "docker"
    [fit] = plan_model(project, "m").fits
    assert (fit.fits, fit.device.name) == (True, "L4")


def test_a_task_of_images_becomes_a_plan(tmp_path: Path) -> None:
    """Whose profiles follow from the batch."""
    vit = write(tmp_path / "vit", VIT, vit_shapes())
    model, _ = proposed(tmp_path / "p", vit, "h100")
    assert (model.task, model.engine.builder) == ("image_classification", "tensorrt")
    assert model.engine.max_seq_len is None
    with pytest.raises(UsageError, match="needs calibration images") as caught:
        proposed(tmp_path / "q", vit, "h100", precision="int8")
    assert "calibration: {data: FOLDER}" in caught.value.remedy


def test_a_gpu_that_tensorrt_has_left(tmp_path: Path) -> None:
    """ONNX Runtime runs there still."""
    model, written = proposed(tmp_path / "p", texts(tmp_path / "c", "embedding"), "v100-32")
    assert (model.engine.builder, model.serving.backend) == ("onnxruntime", "onnxruntime")
    assert not any("compiled on the GPU" in reason for reason in written.reasons)


@pytest.mark.parametrize(
    ("task", "file"), [("embedding", "prompts.txt"), ("rerank", "inputs.jsonl")]
)
def test_int8_is_calibrated_on_the_load_test_s_texts(tmp_path: Path, task: str, file: str) -> None:
    """They are there, so that `plan` accepts it; the user has better ones."""
    folder = tmp_path / "p"
    model, written = proposed(folder, texts(tmp_path / "c", task), "h100", precision="int8")
    assert model.engine.calibration is not None
    assert model.engine.calibration.data == Path(file)
    assert any(reason.startswith(f"calibration: {file} as a start") for reason in written.reasons)
    planned = plan_models(load_project(folder), ["m"])
    assert planned.failure is None


def test_fp8_is_for_graphs_of_one_s_own(tmp_path: Path) -> None:
    """Nothing makes the scales of a task."""
    with pytest.raises(UsageError, match="has no precision `fp8`"):
        proposed(tmp_path / "p", texts(tmp_path / "c", "embedding"), "h100", precision="fp8")


def test_the_gpu_of_this_machine(tmp_path: Path, gpus: list[InstalledGpu]) -> None:
    """The profile beside a project for CPUs is for it, and says what would be for it alone."""
    checkpoint = texts(tmp_path / "c", "embedding")
    _, written = proposed(tmp_path / "p", checkpoint, "cpu")
    assert any(reason.startswith("profile h100: tensorrt fp16") for reason in written.reasons)
    gpus.append(InstalledGpu("NVIDIA GeForce RTX 4090", "8.9", "580.1", 24564))
    model, written = proposed(tmp_path / "q", checkpoint, "cpu")
    assert model.engine.builder == "onnxruntime"
    own = load_profiles(tmp_path / "q")["rtx-4090"].models["m"]
    assert (own.engine.builder, own.engine.target.gpu) == ("tensorrt", "RTX 4090")
    assert own.serving.backend is None
    [said] = [reason for reason in written.reasons if reason.startswith("profile rtx-4090: ")]
    assert said.endswith("this machine has one, `--target 'rtx 4090'` proposes it alone")


def test_a_gpu_that_cannot(tmp_path: Path, gpus: list[InstalledGpu]) -> None:
    """Of this machine, for a model that generates text: why there is no profile."""
    gpus.append(InstalledGpu("Tesla T4", "7.5", "580.1", 15360))
    _, written = proposed(tmp_path / "p", SPELLER, "cpu")
    [said] = [reason for reason in written.reasons if reason.startswith("no profile t4: ")]
    assert "TensorRT-LLM does not support T4" in said


@pytest.mark.parametrize(
    ("name", "capability", "mib", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", 81559, "H100"),
        ("NVIDIA H100 NVL", "9.0", 95830, "H100-NVL"),
        ("NVIDIA H200", "9.0", 143771, "H200"),
        ("NVIDIA A100-SXM4-40GB", "8.0", 40960, "A100-40"),
        ("NVIDIA A100 80GB PCIe", "8.0", 81920, "A100-80"),
        ("Tesla V100-SXM2-16GB", "7.0", 16160, "V100-16"),
        ("Tesla T4", "7.5", 15360, "T4"),
        ("NVIDIA L40S", "8.9", 46068, "L40S"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", 49140, "RTX 6000 Ada"),
        ("NVIDIA A10G", "8.6", 23028, None),
        ("NVIDIA GeForce RTX 3050", "8.6", 8192, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "9.0", 9984, None),
    ],
)
def test_names_that_nvidia_smi_prints(
    name: str, capability: str, mib: int, known: str | None
) -> None:
    """Model, compute capability and memory; nothing is guessed of another."""
    found = match_table_entry(InstalledGpu(name, capability, "580.1", mib), table().gpus)
    assert (found.name if found else None) == known

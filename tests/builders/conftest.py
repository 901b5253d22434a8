# SPDX-License-Identifier: Apache-2.0
"""The OpenVINO builder's modules, and a checkpoint that passes its checks."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import container_engine
from tests.builders.task_exports import Export, Exported, calibration_data, export_task

BUILDERS = Path(__file__).resolve().parents[2] / "builders"
STAND_IN = Path(__file__).resolve().parent / "tensorrt_stand_in"
SHARED = (
    "artefact",
    "checkpoint",
    "compare",
    "compatibility",
    "limits",
    "problems",
    "program",
    "prompts",
    "request",
    "request_types",
    "weights",
)
OPENVINO = ("options", "precisions", "support")
VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER_CONFIG = {
    "architectures": ["BertModel"],
    "vocab_size": 30,
    "hidden_size": 8,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}

Refusal = Callable[[Callable[[], object]], str]


@contextmanager
def modules_of(builder: str, names: tuple[str, ...]) -> Iterator[SimpleNamespace]:
    """A builder's modules and buildlib's as its program sees them, and gone again afterwards."""
    folders = (BUILDERS / builder, BUILDERS / "shared", BUILDERS.parent / "python_backends")
    paths = [str(folder) for folder in folders]
    before = dict(sys.modules)
    for name in names:
        sys.modules.pop(name, None)
    sys.path[:0] = paths
    try:
        loaded: dict[str, ModuleType] = {name: importlib.import_module(name) for name in names}
        shared = {name: importlib.import_module(f"buildlib.{name}") for name in SHARED}
        yield SimpleNamespace(**shared | loaded)
    finally:
        for path in paths:
            sys.path.remove(path)
        for name in names:
            sys.modules.pop(name, None)
            if name in before:
                sys.modules[name] = before[name]


@pytest.fixture(scope="module")
def builder() -> Iterator[SimpleNamespace]:
    """The OpenVINO builder's modules, and buildlib's."""
    with modules_of("openvino", OPENVINO) as modules:
        yield modules


def safetensors(path: Path, data: bytes = b"\0" * 8) -> None:
    """Write a whole safetensors file with one tensor."""
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [0, len(data)]},
        }
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A BERT without a tokenizer that passes every check of an encoder's builder."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    write_json(folder / "config.json", ENCODER_CONFIG)
    safetensors(folder / "model.safetensors")
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint that passes every check."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    safetensors(folder / "model.safetensors")
    added = [{"id": 2, "content": "</s>"}]
    tokenizer = {"model": {"vocab": VOCABULARY}, "added_tokens": added}
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


@pytest.fixture
def refusal(builder: SimpleNamespace) -> Refusal:
    """Problem and remedy, as the user reads them, of a call that must refuse."""

    def read(call: Callable[[], object]) -> str:
        with pytest.raises(builder.problems.BuildError) as caught:
            call()
        assert caught.value.remedy.endswith(".")
        return f"{caught.value.problem}\n{caught.value.remedy}"

    return read


@pytest.fixture
def python_image(docker: None) -> str:
    """The name of an image that has this interpreter."""
    container_engine.import_python_image()
    return container_engine.IMAGE


@pytest.fixture(scope="session")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What int8 is calibrated on: texts, pairs of a reranker, a folder of images."""
    return calibration_data(tmp_path_factory.mktemp("calibration"))


@pytest.fixture(scope="session")
def export(
    onnxruntime_environment: Path,
    calibration: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Export:
    """Runs the first stage on a checkpoint of tests/tiny_task.py or tests/tiny_vision.py."""

    def exported(task: str, checkpoint: Any, precision: str = "fp16") -> Exported:
        into = tmp_path_factory.mktemp("export") / "made"
        python = onnxruntime_environment
        return export_task(python, calibration, into, task, checkpoint, precision)

    return exported


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nvidia-smi, and with the library of a GPU's driver."""
    folder = tmp_path_factory.mktemp("driver")
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("NO COMPILER: the stand-in of the GPU's driver is written in C")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    source = STAND_IN / "cuda_driver.c"
    subprocess.run([*command, "-o", folder / "libcuda.so.1", source], check=True)
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 9.0'\n")
    (folder / "nvidia-smi").chmod(0o755)
    return folder

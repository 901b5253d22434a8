# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl init` proposes for real checkpoints is built, rendered and found right."""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE
from tests.engine_cache import build_cached, content, kept
from tritonctl.checks.checker import check_repository
from tritonctl.engines.proposals.proposal import InitOptions
from tritonctl.engines.proposals.writing import write_project
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.repository.publish import render

pytestmark = pytest.mark.engine

TESTS = Path(__file__).resolve().parents[1]
SPELLER = EXAMPLE / "checkpoint"


@pytest.fixture(scope="module")
def checkpoints(
    openvino_environment: Path,
    onnxruntime_environment: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A Qwen2, a BERT without a head and an ONNX graph, with random weights of a fixed seed."""
    scripts = ("tiny_gemma.py", "tiny_encoder.py", "onnx_graphs.py")
    pythons = (openvino_environment, onnxruntime_environment)
    inputs = {
        "scripts": [content(TESTS / script) for script in scripts],
        "tokenizer": content(SPELLER),
        "pythons": [python.parents[1].name for python in pythons],
        "code": inspect.getsource(write_checkpoints),
    }

    def write(folder: Path) -> None:
        write_checkpoints(folder, *pythons)

    return kept("proposed", inputs, write, tmp_path_factory.mktemp("proposed") / "kept")


def write_checkpoints(folder: Path, openvino: Path, onnxruntime: Path) -> None:
    """Make the three below `folder`, each in the environment that can."""

    def make(python: Path, script: str, *words: str | Path) -> None:
        subprocess.run([python, TESTS / script, *words], check=True)

    make(openvino, "tiny_gemma.py", "Qwen2ForCausalLM", SPELLER, folder / "qwen")
    make(onnxruntime, "tiny_encoder.py", "BertModel", folder / "bert")
    make(onnxruntime, "onnx_graphs.py", folder, "mixed")


@pytest.mark.parametrize(
    ("name", "task", "models"),
    [
        ("llama", "text_generation", 4),
        ("qwen", "text_generation", 4),
        ("bert", "tensors", 1),
        ("mixed", "tensors", 1),
    ],
)
def test_the_proposal_works(
    checkpoints: Path, tmp_path: Path, name: str, task: str, models: int
) -> None:
    """As it was written: from the checkpoint to a repository in which `check` finds nothing."""
    checkpoint = SPELLER if name == "llama" else checkpoints / name
    write_project(tmp_path, InitOptions(name, str(checkpoint)))
    project = load_project(tmp_path)
    assert project.models[name].task == task
    build_cached(project)
    render(project, Silent())
    report = check_repository(project.repository)
    assert report.models == models
    assert report.findings == ()

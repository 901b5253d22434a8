# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl init` proposes for real checkpoints is built, rendered and found right."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE
from tests.engine_cache import build_cached
from tritonctl.checks.checker import check_repository
from tritonctl.engines.proposals.proposal import Wishes
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
    """A Qwen2, a BERT that classifies and an ONNX graph, with random weights."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def make(python: Path, script: str, *words: str | Path) -> None:
        subprocess.run([python, TESTS / script, *words], check=True)

    make(openvino_environment, "tiny_gemma.py", "Qwen2ForCausalLM", SPELLER, folder / "qwen")
    kind = "BertForSequenceClassification"
    make(onnxruntime_environment, "tiny_encoder.py", kind, folder / "bert")
    make(onnxruntime_environment, "onnx_graphs.py", folder, "mixed")
    return folder


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
    write_project(tmp_path, Wishes(name, str(checkpoint)))
    project = load_project(tmp_path)
    assert project.models[name].task == task
    build_cached(project)
    render(project, Silent())
    report = check_repository(project.repository)
    assert report.models == models
    assert report.findings == ()

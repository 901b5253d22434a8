# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl plan` says of a sentence encoder, against engines that were really built."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CHECKOUT
from tests.engine_cache import build_cached
from tritonctl.engines.builds.engine import built_engine
from tritonctl.engines.planning.plans import plan_model
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project

pytestmark = pytest.mark.engine

# benchmarks/results/estimates.md: 0.1 to 1.6 % were seen of sizes; of the memory up to a third.
FILES, MEMORY = 0.02, 1.5
BATCH, LENGTH = 8, 128
TEXTS = ["How do I reset my password?", "I cannot log in.", "Paris is a capital.", "Apples."]


@pytest.fixture(scope="module")
def project(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One model per precision."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    static = {"calibration": {"data": "texts.txt"}, "options": {"calibration": "static"}}
    engines: dict[str, dict[str, Any]] = {
        "fp32": {},
        "fp16": {},
        "int8": {},
        "static": {"precision": "int8"} | static,
        # It is compared on random masks, which mean nothing.
        "given": {"precision": "int8", "options": {"max_abs_error": 100}},
    }
    models = {
        name: {
            "task": "tensors",
            "checkpoint": str(minilm),
            "engine": {
                "builder": "onnxruntime",
                "precision": name,
                "max_batch_size": BATCH,
                "max_seq_len": LENGTH,
            }
            | engine,
        }
        for name, engine in engines.items()
    }
    models["given"]["checkpoint"] = "given"
    content = {"schema": "tritonctl/v1", "models": models}
    (folder / "tritonctl.yaml").write_text(json.dumps(content), encoding="utf-8")
    return load_project(folder / "tritonctl.yaml")


def _compare(project: Project, name: str) -> Path:
    """A plan made without the engine, and the engine; returns its graph."""
    plan = plan_model(project, name)
    assert plan.built is None
    build_cached(project, name)
    artefact = built_engine(project, name)
    sizes = {file.path: file.size for file in artefact.manifest.result.files}
    assert plan.files == pytest.approx(sum(sizes.values()), rel=FILES)
    again = plan_model(project, name)
    assert again.built == sum(sizes.values())
    assert again.build_seconds is not None
    return artefact.folder / "engine" / "model.onnx"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["fp16", "static"])
def test_sizes(project: Project, name: str) -> None:
    """Half of the bits, and Q/DQ nodes."""
    _compare(project, name)


@pytest.mark.parametrize("name", [pytest.param("fp32", marks=pytest.mark.exhaustive), "int8"])
def test_sizes_and_memory(project: Project, onnxruntime_environment: Path, name: str) -> None:
    """The peak of a process that runs two of the largest batches."""
    model = _compare(project, name)
    script = CHECKOUT / "tests" / "onnx_memory.py"
    command: list[str | Path] = [onnxruntime_environment, script, model, str(BATCH), str(LENGTH)]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    (fit,) = plan_model(project, name).fits
    assert int(done.stdout) / MEMORY < fit.needed < int(done.stdout) * MEMORY


@pytest.mark.exhaustive
def test_a_given_graph(project: Project) -> None:
    """The FP32 engine as an ONNX file: what is planned of it is what INT8 makes of it."""
    build_cached(project, "fp32")
    whole = built_engine(project, "fp32").folder / "engine" / "model.onnx"
    given = project.path(Path("given"))
    given.mkdir()
    (given / "model.onnx").hardlink_to(whole)
    _compare(project, "given")

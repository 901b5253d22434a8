# SPDX-License-Identifier: Apache-2.0
"""The stage quantise of TensorRT-LLM's builder in a container: first what its image has, then for
real, with ModelOpt and the shipped checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import container_engine
from tests.builders import quantising
from tests.builders.test_container_runner import containers
from tritonctl.engines.artefacts.manifest import read_manifest
from tritonctl.engines.builds.engine import Artefact, build_engine
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.errors import BuildFailedError, HostError
from tritonctl.host.environments import site_packages
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project

pytestmark = pytest.mark.docker

MODELOPT, OLD = "tritonctl-test/modelopt:1", "tritonctl-test/old-modelopt:1"
CALIBRATION = {"data": str(quantising.EXAMPLE / "prompts.jsonl"), "samples": 16, "max_seq_len": 24}

Build = Callable[..., Artefact]


@pytest.fixture
def build(python_image: str, tmp_path: Path) -> Build:
    """Quantise and package the shipped checkpoint, with `image` for the container."""

    def run(image: str, **engine: Any) -> Artefact:
        project = {"schema": "tritonctl/v1", "models": {"m": model(image, **engine)}}
        (tmp_path / "tritonctl.yaml").write_text(yaml.safe_dump(project), encoding="utf-8")
        return build_engine(load_project(tmp_path), "m", Silent())

    return run


def model(image: str, **engine: Any) -> dict[str, Any]:
    """As in tritonctl.yaml; the GPU is that of the target, not of the machine that quantises."""
    asked = {
        "builder": "tensorrt_llm",
        "precision": "fp8",
        "max_batch_size": 4,
        "max_seq_len": 64,
        "runner": "container",
        "calibration": CALIBRATION,
        "target": {"release": "1.3.0rc29", "world": "pytorch", "gpu": "H100", "image": image},
        **engine,
    }
    checkpoint, prompts = quantising.EXAMPLE / "checkpoint", quantising.EXAMPLE / "prompts.jsonl"
    evaluation = {"prompts": str(prompts), "max_prompts": 4, "max_tokens": 64}
    return {"checkpoint": str(checkpoint), "engine": asked, "evaluation": evaluation}


def test_an_image_without_modelopt(build: Build, tmp_path: Path) -> None:
    """All that it lacks is told, before anything is loaded; what to do, too."""
    with pytest.raises(HostError, match="lacks packages that the build needs") as caught:
        build(container_engine.IMAGE)
    told = caught.value.problem
    assert f"the image {container_engine.IMAGE}" in told
    for name in ("modelopt.torch.export", "modelopt.torch.quantization", "tokenizers"):
        assert f"import {name}: ModuleNotFoundError: No module named" in told
    assert "import transformers: ModuleNotFoundError" in told
    assert "`engine.target.image`" in caught.value.remedy
    assert "`--runner venv`" in caught.value.remedy
    assert not list((tmp_path / ".tritonctl").glob("engines/*/*"))
    assert containers() == []


def test_an_image_with_an_old_modelopt(build: Build, tmp_path: Path) -> None:
    """All that is imported is there; the stage itself looks at the version."""
    packages = tmp_path / "packages"
    (packages / "modelopt" / "torch" / "export").mkdir(parents=True)
    (packages / "modelopt" / "torch" / "quantization").mkdir()
    for name in ("tokenizers", "transformers"):
        (packages / f"{name}.py").touch()
    metadata = packages / "nvidia_modelopt-0.37.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: nvidia-modelopt\nVersion: 0.37.0\n", encoding="utf-8")
    container_engine.import_packages_image(OLD, packages)
    with pytest.raises(BuildFailedError, match=r"has nvidia-modelopt 0\.37\.0") as caught:
        build(OLD)
    assert "runner venv" in caught.value.remedy
    assert containers() == []


@pytest.mark.exhaustive
def test_the_shipped_checkpoint_is_quantised_in_the_image(build: Build, tmp_path: Path) -> None:
    """Evaluated and verified as elsewhere; the manifest has the image and the tools in it."""
    packages = site_packages(quantising.environment().parents[1])
    container_engine.import_packages_image(MODELOPT, packages)
    try:
        artefact = build(MODELOPT)
    finally:
        container_engine.remove_image(MODELOPT)  # gigabytes, which the next run makes again
    quantise = plan_stages(load_project(tmp_path), "m")[0]
    made = read_manifest(quantise.folder).result
    assert made.versions["nvidia-modelopt"] == "0.47.0"
    assert {"torch", "transformers", "tokenizers", "python", "docker"} <= set(made.versions)
    assert made.versions["image"] == MODELOPT
    assert made.versions["image_id"].startswith("sha256:")
    assert made.evaluation is not None
    assert made.evaluation.exact_match == 1.0
    assert (artefact.folder / "llm_args.json").is_file()
    weights = artefact.folder / "checkpoint" / "model.safetensors"
    assert weights.stat().st_uid == os.getuid()
    files = {file.path.split("/")[0] for file in made.files}
    kept = {"build.log", "manifest.json", "reproduce.sh", "request.json", "result.json"}
    assert {path.name for path in quantise.folder.iterdir()} - kept == files
    assert containers() == []

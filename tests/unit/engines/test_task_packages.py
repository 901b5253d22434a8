# SPDX-License-Identifier: Apache-2.0
"""What an image lacks for a task comes from this machine; a script stands for Docker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.engines.builds import runners
from tritonctl.engines.builds.runners import RUNNERS
from tritonctl.engines.builds.stages import StageBuild, plan_stages
from tritonctl.host.environments import EnvironmentRecipe
from tritonctl.host.progress import Progress, Silent
from tritonctl.host.requirements import verified_install_arguments

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

# `docker run OPTIONS --entrypoint "" IMAGE python3 WORDS` runs WORDS in this interpreter without
# its packages: {image} is all that the image has.
DOCKER = """\
#!/bin/sh
case "$1" in
  version) echo 1 ;;
  image) echo sha256:0 ;;
  run)
    while [ "$1" != --entrypoint ]; do shift; done
    shift 4
    PYTHONPATH={image} exec {python} -S "$@" ;;
esac
"""
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages of the image: TensorRT alone."""
    folder, programs = tmp_path / "image", tmp_path / "programs"
    for made in (folder, programs):
        made.mkdir()
    tensorrt = '__version__ = "10.14.1.48"\nBuilder = object\n'
    (folder / "tensorrt.py").write_text(tensorrt, encoding="utf-8")
    docker = programs / "docker"
    docker.write_text(DOCKER.format(image=folder, python=sys.executable), encoding="utf-8")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[EnvironmentRecipe]:
    """What would be installed here."""
    asked: list[EnvironmentRecipe] = []

    def ensure(recipe: EnvironmentRecipe, _: Progress) -> Path:
        asked.append(recipe)
        return tmp_path / "made"

    monkeypatch.setattr(runners, "ensure_environment", ensure)
    return asked


def compiling(sandbox: Sandbox, task: str) -> StageBuild:
    """The stage that runs in NVIDIA's image."""
    (sandbox.checkpoint / "model.onnx").write_bytes(b"graph")
    sandbox.data["models"]["speller"]["task"] = task
    sandbox.data["models"]["speller"]["engine"] = {"builder": "tensorrt", "precision": "fp16"}
    return plan_stages(sandbox.load(), "speller")[-1]


def prefix(build: StageBuild, staging: Path) -> str:
    """What comes before the program of the stage."""
    staging.mkdir(exist_ok=True)
    return " ".join(RUNNERS["container"](build, staging, Silent()).prefix)


def test_what_the_proof_of_a_task_imports(
    sandbox: Sandbox, image: Path, installed: list[EnvironmentRecipe], tmp_path: Path
) -> None:
    """Made for the image's Python, mounted, and found before the image's own."""
    command = prefix(compiling(sandbox, "embedding"), tmp_path / "staging")
    [recipe] = installed
    assert recipe.reader == VERSION
    assert recipe.installs == (verified_install_arguments("requirements.lock"),)
    assert recipe.folder is not None
    assert (recipe.folder / "requirements.lock").is_file()
    packages = tmp_path / "made" / "packages"
    assert f"--env PYTHONPATH={packages} " in command
    assert f"type=bind,source={packages},target={packages},readonly" in command


def test_a_graph_of_one_s_own_has_no_proof(
    sandbox: Sandbox, image: Path, installed: list[EnvironmentRecipe], tmp_path: Path
) -> None:
    """TensorRT is all that it needs."""
    assert "PYTHONPATH" not in prefix(compiling(sandbox, "tensors"), tmp_path / "staging")
    assert not installed


def test_an_image_that_has_them(
    sandbox: Sandbox, image: Path, installed: list[EnvironmentRecipe], tmp_path: Path
) -> None:
    """One of the user's own, with pip install: its packages stay what they are."""
    for name in ("numpy", "PIL", "tokenizers"):
        (image / f"{name}.py").touch()
    assert "PYTHONPATH" not in prefix(compiling(sandbox, "embedding"), tmp_path / "staging")
    assert not installed

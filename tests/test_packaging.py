# SPDX-License-Identifier: Apache-2.0
"""The wheel: holds what git holds, and works the same outside the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tritonctl.project.file import load_project

CHECKOUT = Path(__file__).resolve().parents[1]
CONTENT = (
    "builders",
    "docker",
    "ensembles",
    "python_backends",
    "loadtests",
    "examples/number-speller",
)
BUNDLED = "tritonctl/_bundled/"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def tracked(*paths: str) -> set[str]:
    """The files below some paths that git has or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths]
    listing = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    names = {name for name in listing.stdout.split("\0") if name}
    return {name for name in names if (CHECKOUT / name).is_file()}


def test_wheel_holds_exactly_the_tracked_content(wheel: Path) -> None:
    """Content folders are complete, nothing that git ignores slips in, lint settings stay home."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name.removeprefix(BUNDLED) for name in names if name.startswith(BUNDLED)}
    expected = tracked(*CONTENT)
    assert packed == {name for name in expected if not name.endswith("ruff.toml")}
    modules = {name for name in names if name.startswith("tritonctl/")} - {
        BUNDLED + name for name in packed
    }
    assert modules == tracked("tritonctl")


def test_clone_and_example_are_the_same_project() -> None:
    """The root's tritonctl.yaml and the shipped example differ in their paths alone."""
    clone = load_project(CHECKOUT / "tritonctl.yaml")
    example = load_project(CHECKOUT / "examples" / "number-speller" / "tritonctl.yaml")
    assert clone.path(clone.models["speller"].checkpoint) == example.path(
        example.models["speller"].checkpoint
    )
    assert clone.server == example.server
    assert clone.models["speller"].engine == example.models["speller"].engine


@pytest.mark.server
@pytest.mark.exhaustive
def test_wheel_in_a_new_environment_goes_from_checkpoint_to_streamed_text(
    wheel: Path, tmp_path: Path
) -> None:
    """`tritonctl quickstart` from the installed wheel, in an empty folder."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", wheel], check=True)
    work = tmp_path / "work"
    work.mkdir()
    tritonctl = environment / "bin" / "tritonctl"
    done = subprocess.run(
        [tritonctl, "quickstart", "--json"], cwd=work, check=True, stdout=subprocess.PIPE, text=True
    )
    project = work / "tritonctl-quickstart"
    try:
        record = json.loads(done.stdout)
        assert record["project"] == str(project)
        texts = [answer["text_output"] for answer in record["answers"]]
        assert texts[0] == " seven thousand three hundred forty-two"
        assert [text for text in texts if not text] == []
        generate = [str(tritonctl), "generate", "speller", "7 in English:"]
        again = subprocess.run(generate, cwd=project, check=True, stdout=subprocess.PIPE, text=True)
        assert again.stdout == " seven\n"
    finally:
        subprocess.run([tritonctl, "down"], cwd=project, check=True)

# SPDX-License-Identifier: Apache-2.0
"""The shipped examples that a task serves: built, they score what their cards say."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT
from tests.engine_cache import build_cached
from tritonctl.engines.builds.engine import built_engines
from tritonctl.project.file import load_project

pytestmark = [pytest.mark.engine, pytest.mark.exhaustive]

EXAMPLES = CHECKOUT / "examples"


def score(name: str) -> float:
    """The share that the card says of all held-out inputs."""
    text = (EXAMPLES / name / "checkpoint" / "README.md").read_text(encoding="utf-8")
    [found] = re.findall(r"^\| All \| (\d+) / (\d+)", text, re.MULTILINE)
    return int(found[0]) / int(found[1])


@pytest.mark.parametrize("profile", [None, "small"])
@pytest.mark.parametrize("name", ["number-finder", "digit-reader"])
def test_the_score_of_the_card(
    onnxruntime_environment: Path, tmp_path: Path, name: str, profile: str | None
) -> None:
    """The checkpoint's own library gives it, and so does the engine; int8 loses at most 1 %."""
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder)
    project = load_project(folder, profile=profile)
    build_cached(project)
    [artefact] = built_engines(project).values()
    proof = artefact.manifest.result.proof
    assert proof is not None
    assert proof.evaluation is not None
    assert proof.evaluation.reference == pytest.approx(score(name), abs=1e-9)
    lost = 0.01 if profile else 0.0
    assert proof.evaluation.engine >= score(name) - lost

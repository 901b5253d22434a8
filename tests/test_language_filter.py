# SPDX-License-Identifier: Apache-2.0
"""examples/language-filter: a project of a user's, with a step before a model, as it stands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT, EXAMPLE
from tests.engine_cache import build_cached
from tests.servers import ON_FREE_PORTS
from tritonctl.errors import RequestRejectedError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.repository.new_step import STAND_IN
from tritonctl.repository.publish import render
from tritonctl.runtimes.lifecycle import running_server, start, stop

FILTER = CHECKOUT / "examples" / "language-filter"
GREEDY = SamplingParameters(temperature=0)
ASKED = {
    "How do I say 7342?": " seven thousand three hundred forty-two",
    "515 อ่านว่าอะไร": " ห้าร้อยสิบห้า",
    "🔢 3225": " 3️⃣2️⃣2️⃣5️⃣",
    "947를 어떻게 읽어요?": " 구백사십칠",
    "8308怎么读？": " 八千三百零八",
}


def test_its_own_tests_pass() -> None:
    """With plain pytest, without Triton."""
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(
        command, cwd=FILTER, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "15 passed" in done.stdout


def test_its_stand_in_is_the_one_that_is_written() -> None:
    """By `tritonctl new step`: one of both."""
    text = (FILTER / "tests" / "triton_python_backend_utils.py").read_text(encoding="utf-8")
    assert text.partition("\n")[2] == STAND_IN


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """Beside the shipped checkpoint, with the quickstart's engine, served."""
    for folder in (FILTER, EXAMPLE):
        ignored = shutil.ignore_patterns(".tritonctl", "model_repository", "__pycache__")
        shutil.copytree(folder, tmp_path / folder.name, ignore=ignored)
    free = [f"server.{key}={str(value).lower()}" for key, value in ON_FREE_PORTS.items()]
    project = load_project(tmp_path / FILTER.name, overrides=free)
    build_cached(project)
    start(project, render(project, Silent()), Silent())
    yield project
    stop(project, Silent())


@pytest.mark.server
@pytest.mark.engine
def test_it_answers_in_the_language_of_the_question(project: Project) -> None:
    """A language that the model has none of is refused by name, and a neighbour is answered."""
    with TritonClient(running_server(project).grpc_url) as client:
        for question, answer in ASKED.items():
            assert client.generate("counter", question, GREEDY, timeout=60).text == answer
        with pytest.raises(RequestRejectedError, match="asked in Cyrillic"):
            client.generate("counter", "как читать 515?", GREEDY, timeout=60)
        plain = client.generate("speller", "515 in Thai:", GREEDY, timeout=60).text
    assert plain == ASKED["515 อ่านว่าอะไร"]

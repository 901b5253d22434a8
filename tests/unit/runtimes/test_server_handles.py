# SPDX-License-Identifier: Apache-2.0
"""When a test gets the server that runs, and when another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.configurations import CONTAINERS, SLOW_FILES, longest_first, named_group
from tests.servers import CHECKOUT, USED, Handle
from tritonctl.project.schema import Project

MODEL = {"checkpoint": "unused", "engine": {"builder": "unused", "precision": "fp32"}}


class Fake(Handle):
    """Counts its starts; answers as it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            Project.at(folder, {"schema": "tritonctl/v1", "models": {"m": MODEL}}), "m"
        )
        self.starts = 0
        self.well = False

    def answers(self) -> bool:
        """As the test says."""
        return self.well

    def fresh(self) -> None:
        """Nothing is started, and that answers."""
        self.starts += 1
        self.well = True
        self._states.append(cast("Any", SimpleNamespace(number=self.starts)))


def item(attempt: int = 1) -> Any:
    """A test at its first attempt, or at a later one."""
    return SimpleNamespace(stash=pytest.Stash(), execution_count=attempt)


def test_a_server_is_started_once_while_it_answers(tmp_path: Path) -> None:
    """By the first test; the next ones get the same."""
    handle = Fake(tmp_path)
    assert handle.ready(item()) is handle.ready(item())
    assert handle.starts == 1


def test_a_dead_server_is_replaced(tmp_path: Path) -> None:
    """For the next test, whoever killed it."""
    handle = Fake(tmp_path)
    first = handle.ready(item())
    handle.well = False
    assert handle.ready(item()) is not first


def test_a_second_attempt_has_a_server_of_its_own(tmp_path: Path) -> None:
    """Also where the one before still answers; the test after it keeps that."""
    handle = Fake(tmp_path)
    first = handle.ready(item())
    second = handle.ready(item(attempt=2))
    assert second is not first
    assert handle.ready(item()) is second


def test_a_test_is_known_to_have_had_its_servers(tmp_path: Path) -> None:
    """Its report has the ends of their logs."""
    one, other, test = Fake(tmp_path), Fake(tmp_path), item()
    for handle in (one, other, one):
        handle.ready(test)
    assert list(test.stash[USED].values()) == [one, other]
    assert "there is no" in one.log_tail()


# Up to three processes that import everything: 43 s on two cores at a load of ten.
STARTS_PYTEST = pytest.mark.timeout(240)
FLAKY = """
import pytest
from tests.servers import USED

MADE = []

class Server:
    class project:
        class root:
            name = "a-server"

    def log_tail(self):
        return "what Triton wrote"

@pytest.fixture(scope="module")
def shared():
    MADE.append("made")
    yield
    MADE.append("ended")

def test_flaky(request, shared):
    request.node.stash[USED] = {1: Server()}
    assert request.node.execution_count > 1, "the first time"

def test_after_it(shared):
    assert MADE == ["made", "ended", "made"]
"""


@STARTS_PYTEST
def test_a_second_attempt_is_reported_with_the_first_failure_and_the_log(tmp_path: Path) -> None:
    """In the summary of a run that passes; what the module shares is made anew for it, and kept."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.configurations"]\n')
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    command = [sys.executable, "-m", "pytest", "--reruns", "1", "-p", "no:cacheprovider", "."]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout[done.stdout.index("first attempt of") :]
    assert "AssertionError: the first time" in summary
    assert "log of a-server" in summary
    assert "what Triton wrote" in summary


@STARTS_PYTEST
def test_the_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    """pytest-xdist and pytest understand each other: a configuration is started once."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.configurations"]\n')
    several = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_it(n):\n    pass\n"
    (tmp_path / "test_several.py").write_text(several)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    ran = [line.split("]")[0] for line in done.stdout.splitlines() if "PASSED" in line]
    assert len(ran) == 6, done.stdout + done.stderr
    assert len(set(ran)) == 1


def test_what_takes_longest_comes_first() -> None:
    """Containers, slow files, which are there, and of the others what has most tests."""
    groups = ["few.py", "most.py", SLOW_FILES[1], SLOW_FILES[0], CONTAINERS, "most.py", "few2.py"]
    items: list[Any] = [
        SimpleNamespace(get_closest_marker=lambda _, group=group: SimpleNamespace(args=[group]))
        for group in groups
    ]
    longest_first(items)
    assert [*dict.fromkeys(map(named_group, items))] == [
        CONTAINERS,
        *SLOW_FILES[:2],
        "most.py",
        "few.py",
        "few2.py",
    ]
    assert [file for file in SLOW_FILES if not (CHECKOUT / file).is_file()] == []


@STARTS_PYTEST
def test_a_folder_s_fixtures_are_found_in_any_order_of_files() -> None:
    """Also where files of a folder are named on both sides of another."""
    names = ("frontend/test_router.py", "engines/test_lock.py", "frontend/test_prefetch.py")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--setup-plan"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *(f"tests/unit/{name}" for name in names)],
        cwd=CHECKOUT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]

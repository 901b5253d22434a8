# SPDX-License-Identifier: Apache-2.0
"""What a run of tests leaves out is said: before it by the installer, after it by pytest."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
INSTALLER = CHECKOUT / "tests" / "docker" / "install.sh"
SKIPS = """
import pytest

@pytest.mark.parametrize("number", range(2))
def test_skipped(number):
    pytest.skip("NO THING: apt install thing")

@pytest.mark.xfail
def test_expected_to_fail():
    assert False

def test_passes():
    pass
"""


def run(folder: Path, tests: str) -> str:
    """What pytest tells of these tests."""
    options = ["-q", "-p", "tests.left_out", "-p", "no:cacheprovider", tests]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        env={"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    ).stdout


def test_a_run_ends_with_what_it_did_not_test(tmp_path: Path) -> None:
    """A line for each reason; nothing where all was tested."""
    (tmp_path / "test_some.py").write_text(SKIPS, encoding="utf-8")
    assert re.findall("NOT TESTED.*", run(tmp_path, "test_some.py")) == [
        "NOT TESTED: 2 skipped: NO THING: apt install thing"
    ]
    assert "NOT TESTED" not in run(tmp_path, "test_some.py::test_passes")


def test_the_installer_says_what_will_be_left_out(tmp_path: Path) -> None:
    """Where neither the programs nor apt are: what is skipped, and how to get it."""
    for name in ("sh", "id"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    told = subprocess.run(
        [INSTALLER, "prometheus", "chromium"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert [line.partition(":")[0] for line in told.splitlines()] == [
        "NO DOCKER",
        "NO PROMETHEUS",
        "NO BROWSER",
    ]
    assert "apt install docker.io iptables mmdebstrap)" in told
    assert "apt install prometheus)" in told


def test_the_targets_that_skip_without_prometheus_ask_for_it() -> None:
    """As the CI does: each is run by itself too."""
    lines = (CHECKOUT / "Makefile").read_text(encoding="utf-8").splitlines()
    for target in ("test-real", "test-docker", "test-kubernetes"):
        [first] = [number for number, line in enumerate(lines) if line.startswith(f"{target}:")]
        assert "tests/docker/install.sh prometheus" in lines[first + 1]

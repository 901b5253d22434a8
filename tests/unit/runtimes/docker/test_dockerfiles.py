# SPDX-License-Identifier: Apache-2.0
"""The Dockerfiles: hadolint has nothing to say, no weights, no root, nothing secret."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tritonctl.runtimes.embedded.installation import HUGE_PAGES, server_variables

DOCKER = Path(__file__).resolve().parents[4] / "docker"
HADOLINT = Path(sys.executable).parent / "hadolint"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))

each_file = pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)


def lint(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HADOLINT, file], capture_output=True, text=True, check=False)


@each_file
def test_hadolint_is_content(file: Path) -> None:
    """With shellcheck inside; what is suppressed says so in the file."""
    done = lint(file)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_finds_something_at_all(tmp_path: Path) -> None:
    """The check above can fail."""
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp && sudo make\n", encoding="utf-8")
    assert lint(bad).returncode != 0


@each_file
def test_the_server_is_not_root(file: Path) -> None:
    """The last USER counts, as a number: a runtime can then refuse root."""
    users = re.findall(r"^USER (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert users
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


@each_file
def test_no_frontend_is_fetched(file: Path) -> None:
    """`# syntax=` would ask a registry for one before the first line is read."""
    assert "# syntax" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["triton-cpu", "triton-gpu"])
def test_a_server_s_memory_lies_in_large_pages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an image as in the embedded server, where whoever starts it may say otherwise."""
    content = (DOCKER / f"{name}.Dockerfile").read_text(encoding="utf-8")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    [(variable, setting)] = HUGE_PAGES.items()
    assert f"{variable}={setting} \\\n" in content
    assert server_variables(Path("environment"), [])[variable] == setting
    monkeypatch.setenv(variable, "glibc.malloc.hugetlb=0")
    assert server_variables(Path("environment"), [])[variable] == "glibc.malloc.hugetlb=0"

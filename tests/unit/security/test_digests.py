# SPDX-License-Identifier: Apache-2.0
"""A server starts on the engine that was built, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.errors import HostError, RepositoryError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.repository.publish import RenderedRepository, render
from tritonctl.security.digests import verify_repository

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox


def rendered(built: Sandbox) -> tuple[Project, RenderedRepository]:
    """The project and its repository."""
    project = built.load()
    return project, render(project, Silent())


def engine_files(project: Project) -> list[Path]:
    """What the builder made, where Triton reads it."""
    made = project.state / "engines"
    names = {path.name for path in made.rglob("*") if path.is_file()}
    found = [p for p in sorted(project.repository.rglob("*")) if p.name in names and p.is_file()]
    assert found
    return found


def flip(file: Path) -> None:
    """Change one bit, and leave size and time of modification as they were."""
    before, content = file.stat(), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    with file.open("r+b") as open_file:
        open_file.write(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_was_built_passes(built: Sandbox) -> None:
    """Every engine file in the repository has been looked at."""
    project, done = rendered(built)
    assert verify_repository(project, done.plan, Silent()) == len(engine_files(project)) > 0


def test_one_flipped_bit_is_found_in_every_file(built: Sandbox) -> None:
    """Whichever file it is, with size and times unchanged."""
    project, done = rendered(built)
    for file in engine_files(project):
        flip(file)
        with pytest.raises(RepositoryError, match="was modified after its build") as error:
            verify_repository(project, done.plan, Silent())
        assert f"/{file.name} was modified" in error.value.problem  # several models may share it
        assert "tritonctl build --force speller" in error.value.remedy
        flip(file)
    verify_repository(project, done.plan, Silent())


def test_a_file_that_has_gone(built: Sandbox) -> None:
    """Named, with what to look at."""
    project, done = rendered(built)
    file = engine_files(project)[0]
    file.unlink()
    with pytest.raises(HostError, match=file.name):
        verify_repository(project, done.plan, Silent())


def test_up_refuses_a_changed_engine(cli: Cli, built: Sandbox) -> None:
    """From the command line, exit code 6, nothing started."""
    project, _ = rendered(built)
    flip(engine_files(project)[0])
    done = cli("up")
    assert done.returncode == 6, done.stderr
    assert "was modified after its build" in done.stderr
    assert not (project.state / "server" / "state.json").exists()


def test_the_mode_of_a_secret_file(tmp_path: Path) -> None:
    """0600 from its first byte on, also where it replaces a file that all could read."""
    from tritonctl.host.files import PRIVATE, write_atomically

    file = tmp_path / "state.json"
    write_atomically(file, "{}")
    before = stat.S_IMODE(file.stat().st_mode)
    write_atomically(file, "{}", mode=PRIVATE)
    assert before != PRIVATE
    assert stat.S_IMODE(file.stat().st_mode) == PRIVATE

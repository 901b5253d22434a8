# SPDX-License-Identifier: Apache-2.0
"""Another Python for the embedded server and the builders, where tritonctl's own is not wanted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonctl.errors import HostError
from tritonctl.host import interpreters
from tritonctl.host.environments import EnvironmentRecipe, site_packages
from tritonctl.host.interpreters import (
    Interpreter,
    current_interpreter,
    install_hint,
    require_interpreter,
)
from tritonctl.repository.publish import compile_python
from tritonctl.repository.server_environment import PYTHONS, server_recipe

HERE = Interpreter(Path("/here/python3.14"), (3, 14, 1), (Path("/here/lib"),))


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without interpreters; tritonctl runs under 3.14."""
    interpreters._probe.cache_clear()
    monkeypatch.setattr(interpreters, "current_interpreter", lambda: HERE)
    for name in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    yield tmp_path
    interpreters._probe.cache_clear()


def installed(
    path: Path,
    version: str,
    *,
    shared: bool = True,
    status: int = 0,
    place: Path | None = None,
) -> Path:
    """A program that answers as an interpreter of that version would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    libraries = [str(path.parents[1] / "lib")] if shared else []
    answer = json.dumps([str(place or path), [int(part) for part in version.split(".")], libraries])
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


PLACES = [
    "bin/python3.12",
    ".pyenv/versions/3.12.4/bin/python3.12",
    ".local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12",
    "miniforge3/envs/old/bin/python3.12",
]


@pytest.mark.parametrize("place", PLACES)
def test_where_it_looks(bare: Path, place: str) -> None:
    """PATH, pyenv, uv, conda."""
    path = installed(bare / place, "3.12.4")
    (bare / ".conda").mkdir()
    (bare / ".conda/environments.txt").write_text(f"{bare}/miniforge3/envs/old\n", encoding="utf-8")
    found = require_interpreter(PYTHONS, "the embedded server", shared=True)
    assert found == Interpreter(path, (3, 12, 4), (path.parents[1] / "lib",))


def test_the_newest_that_is_wanted_and_path_before_anywhere_else(bare: Path) -> None:
    """3.13 is not wanted, 3.11 only if there is no 3.12."""
    installed(bare / "bin/python3.13", "3.13.0")
    installed(bare / ".pyenv/versions/3.12.4/bin/python3.12", "3.12.4")
    path = installed(bare / "bin/python3.11", "3.11.9")
    assert require_interpreter(PYTHONS, "x").path == path
    newer = installed(bare / "bin/python3.12", "3.12.1")
    assert require_interpreter(PYTHONS, "x").path == newer


def test_what_cannot_be_used_is_passed_over(bare: Path) -> None:
    """A shim of pyenv without such a version, one without venv, a static one for the server."""
    installed(bare / "bin/python3.12", "3.12.1", status=127)
    static = installed(bare / ".pyenv/versions/3.12.9/bin/python3.12", "3.12.9", shared=False)
    old = installed(bare / ".pyenv/versions/3.11.2/bin/python3.11", "3.11.2")
    assert require_interpreter(PYTHONS, "the embedded server", shared=True).path == old
    assert require_interpreter(PYTHONS, "a builder").path == static


def test_a_shim_is_not_kept(bare: Path) -> None:
    """It answers by the folder that it is called in; the interpreter behind it does not."""
    behind = bare / ".pyenv/versions/3.12.4/bin/python3.12"
    installed(bare / "bin/python3.12", "3.12.4", place=behind)
    assert require_interpreter(PYTHONS, "x").path == behind


def test_its_own_is_taken_if_it_is_wanted(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a static one, when there is no other: what is missing is told later, with a remedy."""
    static = Interpreter(Path("/here/python3.12"), (3, 12, 0))
    monkeypatch.setattr(interpreters, "current_interpreter", lambda: static)
    assert require_interpreter(PYTHONS, "a builder") == static
    assert require_interpreter(PYTHONS, "the embedded server", shared=True) == static
    other = installed(bare / "bin/python3.11", "3.11.2")
    assert require_interpreter(PYTHONS, "a builder") == static
    assert require_interpreter(PYTHONS, "the embedded server", shared=True).path == other


def test_none_at_all() -> None:
    """Where it looked, and how to get one."""
    with pytest.raises(HostError) as caught:
        server_recipe([])
    assert caught.value.problem == (
        "the embedded server needs Python >=3.11,<3.13; this is 3.14.1 (/here/python3.14), "
        "and PATH, pyenv, conda and uv have no other one"
    )
    assert "`uv python install 3.12`" in caught.value.remedy
    assert "3.14" in install_hint(">=3.11,<3.15")


def test_an_environment_belongs_to_the_python_that_it_is_made_with(tmp_path: Path) -> None:
    """Its version is part of the fingerprint, and of where packages lie."""
    old = EnvironmentRecipe("x", (("six",),), python=Interpreter(Path("/p"), (3, 12, 1)))
    assert old.fingerprint() != EnvironmentRecipe("x", (("six",),), python=HERE).fingerprint()
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    assert site_packages(tmp_path) == packages


def test_bytecode_is_that_of_the_server(bare: Path) -> None:
    """Else its stub would write into the model's folder, which to Triton changes the model."""
    real = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    program = bare / "bin" / f"python3.{sys.version_info.minor}"
    program.parent.mkdir(parents=True)
    program.symlink_to(real)
    model = bare / "model"
    model.mkdir()
    (model / "model.py").write_text("x = 1\n", encoding="utf-8")
    (model / "broken.py").write_text("x =\n", encoding="utf-8")
    compile_python([model])
    bytecode = [f"model.cpython-3{sys.version_info.minor}.pyc"]
    assert os.listdir(model / "__pycache__") == bytecode  # noqa: PTH208


def test_the_one_that_runs_says_the_same_of_itself_as_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One list of facts, in process and out of it."""
    monkeypatch.undo()
    assert current_interpreter() == interpreters._probe(Path(sys.executable))

# SPDX-License-Identifier: Apache-2.0
"""Cached environments, with an interpreter that only pretends to make and fill them."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tritonctl.errors import HostError
from tritonctl.host import environments
from tritonctl.host.environments import (
    EnvironmentRecipe,
    ensure_environment,
    environment_python,
    packages_folder,
    site_packages,
)
from tritonctl.host.interpreters import Interpreter
from tritonctl.host.progress import Silent
from tritonctl.repository.backends import backend_named
from tritonctl.repository.server_environment import server_recipe

# `uv venv … DIR` puts the fake interpreter there, `uv pip` succeeds unless a file says otherwise.
FAKE_UV = """\
#!/bin/sh
echo "$@" >> {calls}
case "$1" in
  venv) for folder; do :; done; mkdir -p "$folder/bin" && cp {python} "$folder/bin/python" ;;
  pip) echo "Collecting things"; if [ -e {broken} ]; then echo "ERROR: no network"; exit 1; fi ;;
esac
"""
# `python -c STATEMENTS` is the probe.
FAKE_PYTHON = """\
#!/bin/sh
echo "$@" >> {calls}
[ "$2" != "import missing" ]
"""


@dataclass(frozen=True)
class FakePython:
    """What the pretended interpreter was asked, and how to make its pip fail."""

    calls: Path
    broken: Path

    def count(self, what: str) -> int:
        """How many calls contained a text."""
        lines = self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []
        return sum(what in line for line in lines)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePython:
    """Replace the interpreter that environments are made with."""
    fake = FakePython(tmp_path / "calls", tmp_path / "broken")
    python = tmp_path / "python"
    for file, text in ((tmp_path / "uv", FAKE_UV), (python, FAKE_PYTHON)):
        script = text.format(calls=fake.calls, broken=fake.broken, python=python)
        file.write_text(script, encoding="utf-8")
        file.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(tmp_path / "uv"))
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # PyTorch's index is not asked
    return fake


def _recipe(**changes: object) -> EnvironmentRecipe:
    fields: dict[str, object] = {"name": "test", "installs": (("one==1",), ("--no-deps", "two"))}
    return EnvironmentRecipe(**{**fields, **changes})  # type: ignore[arg-type]


def _entries(tmp_path: Path) -> list[str]:
    return sorted(p.suffix or "folder" for p in (tmp_path / "cache" / "environments").iterdir())


def test_made_once(tmp_path: Path, python: FakePython) -> None:
    """The second call finds it; installs run in order, the probe last."""
    folder = ensure_environment(_recipe(probe="import one"), Silent())
    assert ensure_environment(_recipe(probe="import one"), Silent()) == folder
    assert folder.name.startswith("test-")
    assert environment_python(folder).exists()
    calls = python.calls.read_text(encoding="utf-8").splitlines()
    python_of_it = environment_python(folder)
    assert [call for call in calls if call != "-m pip config list"] == [
        f"venv --quiet --no-project --allow-existing --python {sys.executable} {folder}",
        f"pip install --python {python_of_it} --no-index one==1",
        f"pip install --python {python_of_it} --no-index --no-deps two",
        "-c import one",
    ]
    assert _entries(tmp_path) == [".lock", "folder"]


def test_packages_for_another_python(tmp_path: Path, python: FakePython) -> None:
    """In a folder of their own, as wheels of its version: nothing of it runs here."""
    folder = ensure_environment(_recipe(reader="3.12", installs=(("--no-deps", "one"),)), Silent())
    wheels = f"--only-binary :all: --python-version 3.12 --target {packages_folder(folder)}"
    assert python.count(f" {wheels} --no-deps one") == 1
    assert (
        ensure_environment(_recipe(reader="3.13", installs=(("--no-deps", "one"),)), Silent())
        != folder
    )


def test_one_for_all_that_ask_for_the_same(tmp_path: Path, python: FakePython) -> None:
    """Another name changes nothing: the packages and the probe are the same."""
    folder = ensure_environment(_recipe(), Silent())
    assert ensure_environment(_recipe(name="other"), Silent()) == folder
    assert ensure_environment(_recipe(name="other", probe="import one"), Silent()) != folder
    assert python.count("venv --quiet") == 2


def test_failed_install_leaves_no_environment(tmp_path: Path, python: FakePython) -> None:
    """HostError with pip's last lines and a kept log; nothing that looks like an environment."""
    python.broken.touch()
    with pytest.raises(HostError, match="cannot create the test environment") as caught:
        ensure_environment(_recipe(), Silent())
    assert caught.value.exit_code == 4
    assert "ERROR: no network" in (caught.value.details or "")
    assert _entries(tmp_path) == [".lock", ".log"]
    log = next((tmp_path / "cache" / "environments").glob("*.log"))
    assert str(log) in caught.value.remedy
    assert "ERROR: no network" in log.read_text(encoding="utf-8")


def test_failed_install_is_tried_again(tmp_path: Path, python: FakePython) -> None:
    """Once the cause is gone, the same call succeeds."""
    python.broken.touch()
    with pytest.raises(HostError):
        ensure_environment(_recipe(), Silent())
    python.broken.unlink()
    assert environment_python(ensure_environment(_recipe(), Silent())).exists()
    assert python.count("venv --quiet") == 2


def test_failed_probe_leaves_no_environment(tmp_path: Path, python: FakePython) -> None:
    """An environment that installs but does not work is none."""
    with pytest.raises(HostError, match="cannot create the test environment"):
        ensure_environment(_recipe(probe="import missing"), Silent())
    assert _entries(tmp_path) == [".lock", ".log"]


def test_half_made_folder_is_replaced(python: FakePython) -> None:
    """A folder without its marker (power cut, kill -9) is removed and made anew."""
    folder = ensure_environment(_recipe(), Silent())
    (folder / "tritonctl-environment.json").unlink()
    (folder / "rubbish").touch()
    assert ensure_environment(_recipe(), Silent()) == folder
    assert not (folder / "rubbish").exists()
    assert (folder / "tritonctl-environment.json").is_file()
    assert python.count("venv --quiet") == 2


def test_a_folder_that_somebody_still_fills_is_replaced(
    python: FakePython, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pip that outlived its command writes on: what cannot be removed must not stand in the way.

    `File exists` was what the next command said.
    """
    folder = ensure_environment(_recipe(), Silent())
    (folder / "tritonctl-environment.json").unlink()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert ensure_environment(_recipe(), Silent()) == folder


def test_interrupted_install_leaves_no_environment(tmp_path: Path, python: FakePython) -> None:
    """Ctrl-C while pip runs: the same clean-up."""

    class Interrupting:
        def update(self, text: str) -> None:
            if "Collecting" in text:
                raise KeyboardInterrupt

    folder = tmp_path / "cache" / "environments" / "test-0"
    with pytest.raises(KeyboardInterrupt):
        environments._make(_recipe(), folder, Interrupting(), lambda _: None)
    assert _entries(tmp_path) == [".log"]


def test_fingerprint_is_by_content(tmp_path: Path) -> None:
    """Requirement files count by content, wherever they lie; everything else by text."""
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        folder.mkdir()
        (folder / "requirements.txt").write_text("one==1\n", encoding="utf-8")
    installs = (("-r", "requirements.txt"),)
    in_a = _recipe(installs=installs, folder=a).fingerprint()
    assert in_a == _recipe(installs=installs, folder=b).fingerprint()
    (b / "requirements.txt").write_text("one==2\n", encoding="utf-8")
    assert in_a != _recipe(installs=installs, folder=b).fingerprint()


def _required(tmp_path: Path, *texts: str, options: tuple[str, ...] = ()) -> str:
    """The fingerprint of a recipe that installs requirements files with these texts."""
    installs = list(options)
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
        installs += ["-r", f"{number}.txt"]
    return _recipe(installs=(tuple(installs),), folder=tmp_path).fingerprint()


@pytest.mark.parametrize(
    "texts",
    [
        ("two==2\none==1\n",),
        ("# SPDX\none==1  # why\n\n two==2\n",),
        ("one==1\n", "two==2\n"),
        ("one==1\ntwo==2\n", "one==1\n"),
        ("One == 1\ntwo \\\n==2\n",),
        ("two==2\n-r 1.txt\n", "one==1\n"),
    ],
)
def test_the_same_packages_share_an_environment(tmp_path: Path, texts: tuple[str, ...]) -> None:
    """Order, repetition, comments, spelling and the number of files do not count."""
    assert _required(tmp_path, *texts) == _required(tmp_path, "one==1\ntwo==2\n")


@pytest.mark.parametrize(
    "texts",
    [
        ("one==1\n",),
        ("one==1\ntwo==2.1\n",),
        ("one==1\ntwo[extra]==2\n",),
        ("one==1\ntwo==2; python_version < '3'\n",),
        ("one==1\ntwo==2 --hash=sha256:0\n",),
        ("--pre\none==1\ntwo==2\n",),
        ("one==1\ntwo==2\n-r absent.txt\n",),
        ("one==1\ntwo==2\n-c 1.txt\n", "three==3\n"),
    ],
)
def test_other_packages_make_another_environment(tmp_path: Path, texts: tuple[str, ...]) -> None:
    """Versions, extras, markers, hashes, options and constraints count."""
    assert _required(tmp_path, *texts) != _required(tmp_path, "one==1\ntwo==2\n")


def test_options_count_in_their_order(tmp_path: Path) -> None:
    """The first index is not the second; the value of an option is no requirement."""
    orders: list[tuple[str, ...]] = [("-i", "a", "--extra-index-url", "b"), ("-i", "b", "-i", "a")]
    orders += [("--index-url=a", "b"), ("--no-deps",), ()]
    assert len({_required(tmp_path, "one==1", options=o) for o in orders}) == len(orders)


def test_a_wheel_counts_by_its_content(tmp_path: Path) -> None:
    """Not by its place."""
    (tmp_path / "one.whl").write_bytes(b"\xff1")
    first = _recipe(installs=(("one.whl",),), folder=tmp_path).fingerprint()
    (tmp_path / "one.whl").write_bytes(b"\xff2")
    assert first != _recipe(installs=(("one.whl",),), folder=tmp_path).fingerprint()


def test_backends_share_one_server_environment() -> None:
    """A detokenizer of its own asks for nothing that tokenizer and engine do not ask for."""
    engine, tokenizer, detokenizer = map(
        backend_named, ("openvino_engine", "tokenizer", "detokenizer")
    )
    whole = server_recipe([tokenizer, engine, detokenizer]).fingerprint()
    assert server_recipe([engine, tokenizer]).fingerprint() == whole
    assert server_recipe([engine, detokenizer]).fingerprint() != whole


def test_fingerprint_changes_with_everything_that_matters() -> None:
    """Commands, their order and the probe; the interpreter's version too."""
    recipes = [
        _recipe(),
        _recipe(installs=(("--no-deps", "two"), ("one==1",))),
        _recipe(installs=(("one==1",), ("two",))),
        _recipe(installs=(("one==1", "--no-deps", "two"),)),
        _recipe(installs=(("one==1",),)),
        _recipe(probe="import one"),
    ]
    assert len({recipe.fingerprint() for recipe in recipes}) == len(recipes)


def test_fingerprint_changes_with_the_interpreter() -> None:
    """An environment of Python 3.11.4 is not used by 3.11.5."""
    older, newer = (Interpreter(Path("/python"), (3, 11, patch)) for patch in (4, 5))
    assert _recipe(python=older).fingerprint() != _recipe(python=newer).fingerprint()


def test_site_packages() -> None:
    """Where this interpreter's version keeps packages."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert site_packages(Path("/e")) == Path(f"/e/lib/python{version}/site-packages")

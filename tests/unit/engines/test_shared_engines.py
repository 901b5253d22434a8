# SPDX-License-Identifier: Apache-2.0
"""`engines:`: projects that need the same engine build it once and never lose it to each other."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.unit.conftest import MODEL, Cli, Sandbox
from tests.unit.engines.test_pruning import STAGES
from tritonctl.engines.artefacts.pruning import plan_pruning, prune
from tritonctl.engines.artefacts.store import stored_artefacts
from tritonctl.engines.builds import shared_store
from tritonctl.engines.builds.engine import build_engine, built_engine
from tritonctl.engines.builds.shared_store import remove_unused, unused_artefacts
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_profiles
from tritonctl.store.entries import verify


class Notes(Silent):
    """Progress that keeps what it was told."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The folder, which nobody has made yet."""
    return tmp_path / "shared" / "engines"


@pytest.fixture
def two(tmp_path: Path, shared: Path) -> tuple[Sandbox, Sandbox]:
    """Two projects that ask for the same engine."""
    first, second = Sandbox(tmp_path / "first"), Sandbox(tmp_path / "second")
    for project in (first, second):
        project.data["engines"] = str(shared)
        project.write()
    return first, second


def entry(shared: Path) -> Path:
    """The one artefact that is shared."""
    [found] = [path for path in shared.iterdir() if not path.name.startswith(".")]
    return found


def test_the_second_project_takes_what_the_first_has_built(
    two: tuple[Sandbox, Sandbox], shared: Path
) -> None:
    """Without a copy, whole, with its own paths; it says so."""
    first, second = two
    assert build_engine(first.load(), MODEL, Silent()).is_new
    progress = Notes()
    taken = build_engine(second.load(), MODEL, progress)
    assert (first.run_count(), second.run_count(), taken.is_new) == (1, 0, False)
    assert progress.notes == [f"{MODEL}: taken from {shared}, verified"]
    assert taken.manifest.request.checkpoint == str(second.checkpoint)
    request = json.loads((taken.folder / "request.json").read_text(encoding="utf-8"))
    assert request["checkpoint"] == str(second.checkpoint)
    for file in taken.manifest.result.files:
        assert (taken.folder / file.path).stat().st_nlink == 3
    [stored] = stored_artefacts(second.load())
    assert verify(stored, Silent()) == []
    assert second.files_below("staging") == []
    assert built_engine(second.load(), MODEL).folder == taken.folder


def test_pruning_one_project_takes_nothing_from_the_other(
    two: tuple[Sandbox, Sandbox], shared: Path
) -> None:
    """Nor does pruning the folder: what is linked stays there, and what is not harms nobody."""
    first, second = two
    for project in two:
        build_engine(project.load(), MODEL, Silent())
    first.engine["precision"] = "fp32"
    first.write()
    profiles = load_profiles(first.file)
    assert len(prune(profiles, plan_pruning(profiles).folders, Silent()).removed) == 1
    [stored] = stored_artefacts(second.load())
    assert verify(stored, Silent()) == []
    assert unused_artefacts(shared) == []
    shutil.rmtree(second.root)
    nobodys = entry(shared)
    assert remove_unused(shared, unused_artefacts(shared), Silent()) == [nobodys]
    assert [path.name for path in shared.iterdir()] == [".locks"]


def test_a_removed_shared_engine_stays_with_its_projects(
    two: tuple[Sandbox, Sandbox], shared: Path
) -> None:
    """Somebody deletes the folder: everybody goes on."""
    first, _ = two
    build_engine(first.load(), MODEL, Silent())
    shutil.rmtree(shared)
    [stored] = stored_artefacts(first.load())
    assert verify(stored, Silent()) == []


@pytest.mark.parametrize("damage", ["content", "missing", "extra", "symlink", "manifest"])
def test_a_damaged_one_is_told_and_built_again(
    two: tuple[Sandbox, Sandbox], shared: Path, damage: str
) -> None:
    """Every file counts by its hash; the folder then has the whole one."""
    first, second = two
    built = build_engine(first.load(), MODEL, Silent())
    file = entry(shared) / built.manifest.result.files[0].path
    content = file.read_bytes()
    if damage == "manifest":
        (entry(shared) / "manifest.json").unlink()
        (entry(shared) / "manifest.json").write_text("{}", encoding="utf-8")
    elif damage == "extra":
        (entry(shared) / "more").touch()
    else:
        file.unlink()  # of the links, this one alone
    if damage == "content":
        file.write_bytes(content[::-1])
    elif damage == "symlink":
        file.symlink_to("/etc/passwd")
    progress = Notes()
    assert build_engine(second.load(), MODEL, progress).is_new
    assert len([note for note in progress.notes if "is damaged and built again" in note]) == 1
    assert second.run_count() == 1
    assert not file.is_symlink()
    assert file.read_bytes() == content


def test_of_two_at_once_one_builds(two: tuple[Sandbox, Sandbox]) -> None:
    """The other waits, and takes it."""
    projects = [project.load() for project in two]
    threads = [
        threading.Thread(target=build_engine, args=(project, MODEL, Silent()))
        for project in projects
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(project.run_count() for project in two) == 1
    assert all(built_engine(project, MODEL) for project in projects)


def test_another_file_system_gets_a_copy(
    two: tuple[Sandbox, Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without hard links."""

    def refused(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    first, second = two
    build_engine(first.load(), MODEL, Silent())
    taken = build_engine(second.load(), MODEL, Silent())
    assert second.run_count() == 0
    assert (taken.folder / taken.manifest.result.files[0].path).stat().st_nlink == 1


def test_force_builds_again_and_shares_that(two: tuple[Sandbox, Sandbox], shared: Path) -> None:
    """The other project keeps its own."""
    first, second = two
    for project in two:
        build_engine(project.load(), MODEL, Silent())
    before = (entry(shared) / "manifest.json").stat().st_ino
    assert build_engine(second.load(), MODEL, Silent(), force=True).is_new
    assert second.run_count() == 1
    assert (entry(shared) / "manifest.json").stat().st_ino != before
    assert verify(stored_artefacts(first.load())[0], Silent()) == []


def test_a_folder_that_may_not_be_written(
    two: tuple[Sandbox, Sandbox], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken from all the same; what cannot be shared is told, and is no failure."""
    first, second = two
    build_engine(first.load(), MODEL, Silent())
    monkeypatch.setattr(shared_store, "_is_writable", lambda _: False)
    build_engine(second.load(), MODEL, Silent())
    assert second.run_count() == 0

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(shared))

    monkeypatch.setattr(shared_store, "_link_tree", refused)
    second.engine["precision"] = "fp32"
    progress = Notes()
    assert build_engine(second.load(), MODEL, progress).is_new
    assert progress.notes[-1].startswith(f"{MODEL} is built and not shared: no permission to write")


def test_stages_are_shared_each(two: tuple[Sandbox, Sandbox], shared: Path) -> None:
    """An engine is taken without its earlier stage where that was removed."""
    for project in two:
        builder = project.root / "builders" / "scripted" / "builder.toml"
        builder.write_text(builder.read_text(encoding="utf-8") + STAGES, encoding="utf-8")
        options = project.engine["options"]
        project.engine["options"] = {"quantise": options, "compile": options}
    first, second = two
    build_engine(first.load(), MODEL, Silent())
    assert first.run_count() == 2
    [quantised] = shared.glob("quantise-*")
    shutil.rmtree(quantised)
    build_engine(second.load(), MODEL, Silent())
    assert second.run_count() == 0
    assert len(stored_artefacts(second.load())) == 1


def test_prune_shared(two: tuple[Sandbox, Sandbox], shared: Path, cli: Cli) -> None:
    """The command: what nobody has links to; without `engines:` it says what to do."""
    first, _ = two
    build_engine(first.load(), MODEL, Silent())
    asked = ("artefacts", "prune", "--shared", "--yes", "--json", "--project", str(first.file))
    assert json.loads(cli(*asked).stdout)["removed"] == []
    kept = entry(shared)
    shutil.rmtree(first.root / ".tritonctl")
    dry = json.loads(cli(*asked, "--dry-run").stdout)
    assert (dry["removed"], kept.is_dir()) == ([str(kept)], True)
    assert json.loads(cli(*asked).stdout)["removed"] == [str(kept)]
    assert not kept.exists()
    del first.data["engines"]
    first.write()
    refused = cli(*asked)
    assert (refused.returncode, "it has no `engines:`" in refused.stderr) == (2, True)

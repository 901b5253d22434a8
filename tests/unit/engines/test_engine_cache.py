# SPDX-License-Identifier: Apache-2.0
"""The cache of the tests' own engines: never stale, never half written, bounded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import engine_cache
from tests.engine_cache import build_cached, kept
from tests.unit.conftest import MODEL, Sandbox
from tritonctl.engines.builds.engine import built_engine
from tritonctl.errors import BuildFailedError

DAY = 24 * 3600


@pytest.fixture
def counted(tmp_path: Path) -> Callable[[str], Sandbox]:
    """Projects in folders of their own whose builder counts its runs in each."""

    def make(name: str) -> Sandbox:
        return Sandbox(tmp_path / name / "project")

    return make


def entries(tmp_path: Path) -> list[Path]:
    """What the cache holds, locks apart."""
    folder = tmp_path / "cache" / "test-engines"
    return sorted(folder.glob("*-*"))


def test_a_second_project_gets_the_engine_of_the_first(
    counted: Callable[[str], Sandbox],
) -> None:
    """Built once; the copy is whole, and its request names the second project's paths."""
    first, second = counted("first"), counted("second")
    build_cached(first.load())
    build_cached(second.load(), MODEL)
    assert (first.run_count(), second.run_count()) == (1, 0)
    ours, theirs = built_engine(first.load(), MODEL), built_engine(second.load(), MODEL)
    assert theirs.manifest.result == ours.manifest.result
    assert theirs.manifest.request.checkpoint == str(second.checkpoint)
    assert sorted(p.name for p in theirs.folder.rglob("*")) == sorted(
        p.name for p in ours.folder.rglob("*")
    )
    assert second.files_below("staging") == []


def test_a_model_s_name_is_not_the_engine_s(counted: Callable[[str], Sandbox]) -> None:
    """Two models of a project that differ in it are built once, a third in another one not again;
    each has its own name in its manifest, and its artefact is current.
    """
    first, second = counted("first"), counted("second")
    first.data["models"]["twin"] = first.model()
    build_cached(first.load())
    assert first.run_count() == 1
    second.data["models"] = {"other": second.model()}
    build_cached(second.load())
    assert second.run_count() == 0
    for sandbox, name in ((first, MODEL), (first, "twin"), (second, "other")):
        assert built_engine(sandbox.load(), name).manifest.request.model == name


@pytest.mark.parametrize("change", ["builder", "checkpoint", "request", "writers"])
def test_nothing_stale(
    counted: Callable[[str], Sandbox], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Whatever shapes an artefact: another content of it is another engine."""
    build_cached(counted("first").load())
    second = counted("second")
    if change == "builder":
        with (second.root / "builders" / "scripted" / "build.py").open("a") as script:
            script.write("\n# changed\n")
    elif change == "checkpoint":
        (second.checkpoint / "model.safetensors").write_bytes(b"others")
    elif change == "request":
        second.engine["max_seq_len"] = 32
    else:
        monkeypatch.setattr(engine_cache, "_writers", lambda: "other modules")
    build_cached(second.load())
    assert second.run_count() == 1


def test_the_modules_that_write_an_artefact_count() -> None:
    """Those of the room `engines` and the two beside it, by content."""
    assert len(engine_cache._writers()) == 3 * 64


def test_a_copy_is_the_project_s_own(counted: Callable[[str], Sandbox]) -> None:
    """What a test does to its engine does not reach the next one."""
    first = counted("first")
    build_cached(first.load())
    second, third = counted("second"), counted("third")
    build_cached(second.load())
    (built_engine(second.load(), MODEL).folder / "engine" / "openvino_model.bin").write_bytes(b"")
    build_cached(third.load())
    assert third.run_count() == 0
    assert (built_engine(third.load(), MODEL).folder / "engine/openvino_model.bin").read_bytes()


@pytest.mark.parametrize("damage", ["content", "half", "record"])
def test_a_damaged_entry_is_made_anew(
    counted: Callable[[str], Sandbox], tmp_path: Path, damage: str
) -> None:
    """A disk that was full, a power cut: never served."""
    build_cached(counted("first").load())
    [entry] = entries(tmp_path)
    [weights] = entry.rglob("openvino_model.bin")
    if damage == "content":
        weights.write_bytes(b"others")
    elif damage == "half":
        weights.unlink()
    else:
        (entry / "contents.json").write_text("{", encoding="utf-8")
    second = counted("second")
    build_cached(second.load())
    assert second.run_count() == 1


def test_a_failed_build_leaves_nothing(counted: Callable[[str], Sandbox], tmp_path: Path) -> None:
    """Neither an entry nor a staging folder; the error is the builder's, with its log."""
    sandbox = counted("first")
    sandbox.behave("refuses")
    with pytest.raises(BuildFailedError, match="out of fashion") as refused:
        build_cached(sandbox.load())
    assert "scripted builder for speller" in "".join(refused.value.__notes__)
    assert entries(tmp_path) == []

    def fail(folder: Path) -> None:
        (folder / "half").write_text("of it", encoding="utf-8")
        raise RuntimeError("as the test wants it")

    with pytest.raises(RuntimeError, match="as the test wants it"):
        kept("kind", {}, fail, tmp_path / "into")
    assert entries(tmp_path) == []


def test_made_once_by_many_at_once(tmp_path: Path) -> None:
    """Eight that ask for the same: one makes it, all get it."""
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("content", encoding="utf-8")

    def ask(number: int) -> str:
        into = kept("kind", {"a": 1}, make, tmp_path / str(number))
        return (into / "file").read_text(encoding="utf-8")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["content"] * 8
    assert len(made) == 1
    kept("kind", {"a": 2}, make, tmp_path / "other")
    assert len(made) == 2


def test_what_is_old_or_too_much_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By last use; what a killed process left goes, too."""

    def ask(name: str) -> None:
        kept(name, {}, lambda folder: (folder / "f").write_bytes(bytes(1000)), tmp_path / name)
        shutil.rmtree(tmp_path / name)

    def aged(name: str, days: float) -> None:
        [entry] = [path for path in entries(tmp_path) if path.name.startswith(name)]
        os.utime(entry, (then := time.time() - days * DAY, then))

    for name in ("first", "second"):
        ask(name)
    left = tmp_path / "cache" / "test-engines" / "third-0.staging"
    left.mkdir()
    aged("first", 31)
    aged("third", 31)
    ask("second")
    assert [path.name.split("-")[0] for path in entries(tmp_path)] == ["second"]
    aged("second", 1)
    ask("fourth")
    monkeypatch.setattr(engine_cache, "MOST_BYTES", 2000)
    ask("fourth")
    assert [path.name.split("-")[0] for path in entries(tmp_path)] == ["fourth"]

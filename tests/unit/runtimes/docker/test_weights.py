# SPDX-License-Identifier: Apache-2.0
"""The program that verifies a release in a pod before the server starts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.modules import module_of
from tests.unit.conftest import Sandbox
from tests.unit.releases.releasing import released_once
from tritonctl.releases.store import StoredRelease, stored_releases
from tritonctl.runtimes.kubernetes.chart import release_address
from tritonctl.store.folders import remove_tree

__all__ = ["released_once"]  # a fixture

PROGRAM = Path(__file__).parents[4] / "docker" / "chart" / "files" / "weights.py"
ENGINE = "openvino_model.bin"


weights = module_of(PROGRAM, "weights_of_the_chart")


@pytest.fixture
def volume(released_once: Sandbox, tmp_path: Path) -> Path:
    """A volume that holds a release, with permissions as they were copied."""
    folder = tmp_path / "volume"
    shutil.copytree(released_once.root / "releases", folder, symlinks=True)
    return folder


@pytest.fixture
def stored(released_once: Sandbox) -> StoredRelease:
    """That release."""
    return stored_releases(released_once.load())[0]


def run(stored: StoredRelease, volume: Path, *more: str | Path) -> int:
    """The program's exit status."""
    arguments = [f"--release={release_address(stored)}", f"--source={volume}", *map(str, more)]
    status: int = weights.main(arguments)
    return status


def writable(folder: Path) -> None:
    """As root could write there."""
    for parent, _, names in os.walk(folder):
        Path(parent).chmod(0o755)
        for name in names:
            (Path(parent) / name).chmod(0o644)


def engine_of(folder: Path) -> Path:
    """The file with an engine's weights."""
    return next(folder.rglob(ENGINE))


def test_a_release_that_is_whole(
    stored: StoredRelease, volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is; what was verified is said."""
    assert run(stored, volume) == 0
    count = len(stored.manifest().files)
    assert f"weights: release {stored.name} is complete: {count} files" in capsys.readouterr().out


def damaged(volume: Path, name: str) -> None:
    """A byte is another."""
    file = engine_of(volume / name)
    file.write_bytes(b"x" + file.read_bytes()[1:])


def lost(volume: Path, name: str) -> None:
    """A file is missing."""
    engine_of(volume / name).unlink()


def added(volume: Path, name: str) -> None:
    """Code that nobody released, where Triton would load it."""
    (engine_of(volume / name).parent / "extra.py").write_text("evil", encoding="utf-8")


def exchanged(volume: Path, name: str) -> None:
    """Another release under this one's name, whole in itself."""
    manifest = volume / name / "release.json"
    record = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(record | {"created": "now"}), encoding="utf-8")


def absent(volume: Path, name: str) -> None:
    """The volume is empty still."""
    shutil.rmtree(volume / name)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (damaged, "was modified after the release"),
        (lost, "is missing"),
        (added, "is not part of the release"),
        (exchanged, "belongs to another release"),
        (absent, "there is no release at"),
    ],
)
@pytest.mark.parametrize("copies", [False, True], ids=["in place", "copied"])
def test_what_is_not_as_it_was_released(
    stored: StoredRelease,
    volume: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Any,
    said: str,
    copies: bool,
) -> None:
    """Never gets to a server: refused where it is, refused or left behind when copied."""
    writable(volume)
    harm(volume, stored.name)
    target = tmp_path / "target"
    target.mkdir()
    if copies and harm is added:
        assert run(stored, volume, f"--target={target}") == 0
        assert not list(target.rglob("extra.py"))
        return
    assert run(stored, volume, *([f"--target={target}"] if copies else [])) == 1
    assert said in capsys.readouterr().err
    assert not (target / stored.name).exists()


def test_a_copy_is_as_it_was_released(stored: StoredRelease, volume: Path, tmp_path: Path) -> None:
    """Content and permissions; a second pod of the node reads nothing of the volume but its own."""
    target = tmp_path / "node"
    target.mkdir()
    assert run(stored, volume, f"--target={target}") == 0
    for file in stored.manifest().files:
        copy = target / stored.name / file.path
        assert hashlib.sha256(copy.read_bytes()).hexdigest() == file.sha256
        assert f"{copy.stat().st_mode & 0o777:04o}" == file.mode
    remove_tree(volume / stored.name)
    assert run(stored, volume, f"--target={target}") == 0


def test_a_copy_that_was_damaged_is_made_again(
    stored: StoredRelease, volume: Path, tmp_path: Path
) -> None:
    """A node's disk may lie."""
    target = tmp_path / "node"
    target.mkdir()
    assert run(stored, volume, f"--target={target}") == 0
    writable(target / stored.name)
    damaged(target, stored.name)
    assert run(stored, volume, f"--target={target}") == 0
    original = engine_of(volume / stored.name).read_bytes()
    assert engine_of(target / stored.name).read_bytes() == original


def test_two_pods_of_a_node_copy_once(
    stored: StoredRelease, volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits, and finds what the first has copied."""
    target = tmp_path / "node"
    target.mkdir()
    copies: list[str] = []
    monkeypatch.setattr(weights, "copied", _counting(weights.copied, copies))
    statuses: list[int] = []
    pods = [
        threading.Thread(target=lambda: statuses.append(run(stored, volume, f"--target={target}")))
        for _ in range(3)
    ]
    for pod in pods:
        pod.start()
    for pod in pods:
        pod.join()
    assert (statuses, len(copies)) == ([0, 0, 0], 1)


def _counting(copied: Any, calls: list[str]) -> Any:
    def counted(*arguments: Any) -> Any:
        calls.append("copied")
        return copied(*arguments)

    return counted


def test_what_a_killed_pod_left_is_no_release(
    stored: StoredRelease, volume: Path, tmp_path: Path
) -> None:
    """Half a copy has another name, and goes."""
    target = tmp_path / "node"
    left = target / f".staging-{stored.name}" / "repository"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"half")
    left.chmod(0o555)
    assert run(stored, volume, f"--target={target}") == 0
    assert [path.name for path in target.iterdir() if path.is_dir()] == [stored.name]


def test_only_some_files(stored: StoredRelease, volume: Path, tmp_path: Path) -> None:
    """What the frontend reads; the others are not even looked at."""
    writable(volume)
    damaged(volume, stored.name)
    target = tmp_path / "frontend"
    target.mkdir()
    assert run(stored, volume, f"--target={target}", "--only=*/config.pbtxt") == 0
    found = {path.name for path in (target / stored.name).rglob("*") if path.is_file()}
    assert found == {"config.pbtxt", "release.json"}


def test_a_disk_without_room(
    stored: StoredRelease,
    volume: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Said before anything is copied."""
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    target = tmp_path / "node"
    target.mkdir()
    assert run(stored, volume, f"--target={target}") == 1
    assert f"{target} has 1000 free" in capsys.readouterr().err
    assert [path.name for path in target.iterdir()] == [f".lock-{stored.name}"]


def test_a_list_of_files_that_leads_out(
    stored: StoredRelease, volume: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asks for such a release by its digest gets nothing written elsewhere."""
    writable(volume)
    manifest = volume / stored.name / "release.json"
    record = json.loads(manifest.read_text(encoding="utf-8"))
    record["files"][0]["path"] = "../../escaped"
    manifest.write_text(json.dumps(record), encoding="utf-8")
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    address = f"{stored.name}@sha256:{digest}"
    target = tmp_path / "node"
    target.mkdir()
    assert weights.main([f"--release={address}", f"--source={volume}", f"--target={target}"]) == 1
    assert "is outside the release" in capsys.readouterr().err

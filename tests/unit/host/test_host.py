# SPDX-License-Identifier: Apache-2.0
"""Files whole or not at all, locks between processes, the operating system's errors explained."""

from __future__ import annotations

import os
import select
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tritonctl.errors import HostError
from tritonctl.host.files import as_host_error, cache_folder, exclusive, write_atomically
from tritonctl.host.progress import ProgressStep, Silent

HOLD_LOCK = """
import sys
from pathlib import Path
from tritonctl.host.files import exclusive
from tritonctl.host.progress import Silent
print("started", flush=True)
with exclusive(Path(sys.argv[1]), Silent(), "test"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    """New content under the old name, parents made, no temporary file left."""
    file = tmp_path / "a" / "b" / "f.json"
    write_atomically(file, "old")
    write_atomically(file, "néw 字")
    assert file.read_text(encoding="utf-8") == "néw 字"
    assert [p.name for p in file.parent.iterdir()] == ["f.json"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """The new content is another file under the old name; who reads the old one reads all of it."""
    file = tmp_path / "f.json"
    write_atomically(file, "old")
    with file.open(encoding="utf-8") as reader:
        write_atomically(file, "new")
        assert reader.read() == "old"
    assert file.read_text(encoding="utf-8") == "new"


def test_write_leaves_old_content_when_it_fails(tmp_path: Path) -> None:
    """A failure half-way (here: text that UTF-8 cannot hold) changes nothing."""
    file = tmp_path / "f.json"
    write_atomically(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "x" * 100_000 + "\ud800")
    assert file.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    """A project file is for the team, not for one user's eyes only."""
    previous = os.umask(0o022)
    try:
        write_atomically(tmp_path / "f", "x")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644


def test_full_disk(small_disk: Path) -> None:
    """No space: HostError names the place, the old file stays, no temporary one is left."""
    file = small_disk / "f.json"
    write_atomically(file, "old")
    with pytest.raises(HostError, match="no space left while writing") as caught:
        write_atomically(file, "x" * 4_000_000)
    assert caught.value.exit_code == 4
    assert f"df -h {small_disk}" in caught.value.remedy
    assert file.read_text(encoding="utf-8") == "old"
    assert [p.name for p in small_disk.iterdir()] == ["f.json"]


def test_full_disk_while_a_folder_is_copied(small_disk: Path, tmp_path: Path) -> None:
    """shutil.copytree reports in its own way; the user still reads "no space"."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(b"x" * 4_000_000)
    with (
        pytest.raises(HostError, match="no space left while writing"),
        as_host_error(small_disk / "copy"),
    ):
        shutil.copytree(source, small_disk / "copy")


def test_other_collected_errors_keep_their_text(tmp_path: Path) -> None:
    """An error without an error number is told by its words, not as "None"."""
    with pytest.raises(HostError, match="it broke"), as_host_error(tmp_path):
        raise shutil.Error([("a", "b", "it broke")])


def test_no_permission(tmp_path: Path) -> None:
    """EACCES names the folder to make writable."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(HostError, match="no permission to write") as caught:
        write_atomically(tmp_path / "f", "x")
    assert f"make {tmp_path} writable" in caught.value.remedy


def test_permission_error_is_explained(tmp_path: Path) -> None:
    """The same explanation where root runs the tests: from the error itself."""
    with (
        pytest.raises(HostError, match="no permission to write /somewhere/f"),
        as_host_error(tmp_path / "f"),
    ):
        raise PermissionError(13, "Permission denied", "/somewhere/f")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    """Anything else keeps the system's own words."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(HostError, match=r"file: (Not a directory|File exists)"):
        write_atomically(tmp_path / "file" / "f", "x")


def test_lock_excludes_another_process(tmp_path: Path) -> None:
    """Two processes: the second waits and goes on when the first has let go."""
    lock = tmp_path / "locks" / "l"
    with _Holder(lock) as first:
        assert first.says("held")
        with _Holder(lock) as second:
            assert not second.says("held", seconds=0.2)
            first.process.communicate(b"\n")
            assert second.says("held")
            second.process.communicate(b"\n")


def test_waiting_for_a_lock_is_announced(tmp_path: Path) -> None:
    """A waiting step appears while somebody else holds it, and only then."""
    lock, steps = tmp_path / "l", _Steps()
    with _Holder(lock) as holder:
        assert holder.says("held")
        steps.on_step = lambda: holder.process.communicate(b"\n")
        with exclusive(lock, steps, "build x"):
            assert steps.titles == ["Waiting for another tritonctl to build x"]
    with exclusive(lock, steps, "build x"):
        assert len(steps.titles) == 1


def test_lock_is_released_by_a_killed_process(tmp_path: Path) -> None:
    """No stale lock after kill -9."""
    lock = tmp_path / "l"
    with _Holder(lock) as holder:
        assert holder.says("held")
        holder.process.kill()
        holder.process.communicate()
    with exclusive(lock, Silent(), "test"):
        pass


def test_lock_is_released_after_an_error(tmp_path: Path) -> None:
    """The same process can take it again."""
    lock = tmp_path / "l"
    with pytest.raises(ZeroDivisionError), exclusive(lock, Silent(), "test"):
        raise ZeroDivisionError
    with exclusive(lock, Silent(), "test"):
        pass


class _Steps(Silent):
    """Remembers the steps and does something when one begins."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.on_step: Callable[[], object] = list

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        self.titles.append(title)
        self.on_step()
        with super().step(title) as step:
            yield step


class _Holder:
    """Another process that takes a lock and keeps it until it gets a line."""

    def __init__(self, lock: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD_LOCK, str(lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a line in a buffer would be invisible to select
        )
        assert self.says("started")

    def says(self, line: str, seconds: float = 60.0) -> bool:
        """Whether that line comes in time."""
        out = self.process.stdout
        assert out is not None
        return (
            bool(select.select([out], [], [], seconds)[0])
            and out.readline() == f"{line}\n".encode()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRITONCTL_CACHE_DIR over XDG_CACHE_HOME over ~/.cache."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("TRITONCTL_CACHE_DIR", "/mine")
    assert cache_folder() == Path("/mine")
    monkeypatch.delenv("TRITONCTL_CACHE_DIR")
    assert cache_folder() == Path("/xdg/tritonctl")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path("/home/me/.cache/tritonctl")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers whose user has a number and no name: which variable helps."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TRITONCTL_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(HostError) as caught:
        cache_folder()
    assert "TRITONCTL_CACHE_DIR" in caught.value.remedy

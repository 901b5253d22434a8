# SPDX-License-Identifier: Apache-2.0
"""The deployment's folder is the user's: what he changed is never overwritten unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import write_atomically
from tritonctl.runtimes.docker import deployment_files as publishing
from tritonctl.runtimes.docker.deployment_files import (
    MANIFESTS_RECORD,
    edited_files,
    update_files,
    write_files,
)

FILES = {"compose.yaml": "one\n", "triton/Dockerfile": "two\n"}


def test_again_changes_nothing(tmp_path: Path) -> None:
    """Not even a time stamp."""
    assert write_files(FILES, tmp_path).written == ("compose.yaml", "triton/Dockerfile")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = write_files(FILES, tmp_path)
    assert (again.written, again.removed) == ((), ())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_that_kubectl_applies(tmp_path: Path) -> None:
    """`kubectl apply --filename FOLDER` takes each .json and .yaml; the record is neither."""
    write_files({"triton.yaml": "one\n"}, tmp_path, record=MANIFESTS_RECORD)
    taken = {path.name for path in tmp_path.iterdir() if path.suffix in (".json", ".yaml", ".yml")}
    assert taken == {"triton.yaml"}
    (tmp_path / "triton.yaml").write_text("mine\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="edited since"):
        write_files({"triton.yaml": "two\n"}, tmp_path, record=MANIFESTS_RECORD)


def test_a_change_by_hand_is_kept(tmp_path: Path) -> None:
    """Refused before anything else is written; --force overwrites."""
    write_files(FILES, tmp_path)
    (tmp_path / "compose.yaml").write_text("mine\n", encoding="utf-8")
    assert edited_files(tmp_path) == ["compose.yaml"]
    newer = {"compose.yaml": "three\n", "triton/Dockerfile": "four\n"}
    with pytest.raises(ConfigurationError, match=r"compose\.yaml: edited since") as caught:
        write_files(newer, tmp_path)
    assert "--force" in caught.value.remedy
    assert (tmp_path / "triton/Dockerfile").read_text(encoding="utf-8") == "two\n"
    write_files(newer, tmp_path, force=True)
    assert (tmp_path / "compose.yaml").read_text(encoding="utf-8") == "three\n"


def test_a_change_that_rendering_would_not_touch_does_not_matter(tmp_path: Path) -> None:
    """Files beside ours, and one changed to just what would be written."""
    write_files(FILES, tmp_path)
    (tmp_path / "compose.override.yaml").write_text("mine\n", encoding="utf-8")
    (tmp_path / "compose.yaml").write_text("three\n", encoding="utf-8")
    write_files({**FILES, "compose.yaml": "three\n"}, tmp_path)
    assert (tmp_path / "compose.override.yaml").exists()


def test_a_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    """A compose.yaml that was there before tritonctl came."""
    (tmp_path / "compose.yaml").write_text("mine\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not written by tritonctl"):
        write_files(FILES, tmp_path)
    assert not (tmp_path / "triton").exists()


def test_what_is_no_longer_rendered_goes(tmp_path: Path) -> None:
    """Unless it was changed."""
    write_files({**FILES, "a": "1", "b": "2"}, tmp_path)
    (tmp_path / "b").write_text("mine", encoding="utf-8")
    assert write_files(FILES, tmp_path).removed == ("a",)
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "b").exists()


def test_killed_in_between_leaves_no_file_that_counts_as_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next rendering goes on where the last one died."""
    write_files(FILES, tmp_path)
    newer = {"compose.yaml": "three\n", "triton/Dockerfile": "four\n"}

    def dies_at_the_second(path: Path, text: str) -> None:
        if path.name == "Dockerfile":
            raise KeyboardInterrupt
        write_atomically(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "write_atomically", dies_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            write_files(newer, tmp_path)
    assert (tmp_path / "compose.yaml").read_text(encoding="utf-8") == "three\n"
    newest = {"compose.yaml": "five\n", "triton/Dockerfile": "six\n"}
    assert write_files(newest, tmp_path).written == ("compose.yaml", "triton/Dockerfile")


def test_a_damaged_record_protects_what_is_there(tmp_path: Path) -> None:
    """Without it everything might be the user's."""
    write_files(FILES, tmp_path)
    (tmp_path / publishing.RECORD).write_text("{", encoding="utf-8")
    write_files(FILES, tmp_path)
    (tmp_path / publishing.RECORD).write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigurationError):
        write_files({**FILES, "compose.yaml": "new\n"}, tmp_path)


NEWER = {"compose.yaml": "three\n", "triton/Dockerfile": "four\n"}


def test_brought_up_to_date_where_nobody_changed_anything(tmp_path: Path) -> None:
    """Written anew, removed, and then there is nothing left to do."""
    write_files({**FILES, "gone": "1"}, tmp_path)
    done = update_files(NEWER, tmp_path)
    assert (done.written, done.removed) == (("compose.yaml", "triton/Dockerfile"), ("gone",))
    assert (tmp_path / "compose.yaml").read_text(encoding="utf-8") == "three\n"
    assert update_files(NEWER, tmp_path).written == ()


def test_a_change_stays_while_its_file_is_rendered_as_before(tmp_path: Path) -> None:
    """However often, and although other files are written anew."""
    write_files(FILES, tmp_path)
    (tmp_path / "compose.yaml").write_text("mine\n", encoding="utf-8")
    newer = {**FILES, "triton/Dockerfile": "four\n"}
    assert update_files(newer, tmp_path).written == ("triton/Dockerfile",)
    assert update_files(newer, tmp_path).written == ()
    assert (tmp_path / "compose.yaml").read_text(encoding="utf-8") == "mine\n"
    assert edited_files(tmp_path) == ["compose.yaml"]


def test_a_change_to_what_is_rendered_otherwise_now_is_refused(tmp_path: Path) -> None:
    """Nothing is written; the command that overwrites is told."""
    write_files(FILES, tmp_path)
    (tmp_path / "compose.yaml").write_text("mine\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"compose\.yaml: edited since") as caught:
        update_files(NEWER, tmp_path)
    assert "`tritonctl deploy compose --force`" in caught.value.remedy
    assert (tmp_path / "triton/Dockerfile").read_text(encoding="utf-8") == "two\n"
    assert edited_files(tmp_path) == ["compose.yaml"]


def test_files_of_somebody_else_are_not_brought_up_to_date(tmp_path: Path) -> None:
    """Without a record all of it may be the user's."""
    (tmp_path / "compose.yaml").write_text("mine\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not written by tritonctl"):
        update_files(FILES, tmp_path)


def test_killed_in_between_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was not written yet is no change by hand, though its rendering is known."""
    write_files(FILES, tmp_path)

    def dies(path: Path, text: str) -> None:
        if path.name == "Dockerfile":
            raise KeyboardInterrupt
        write_atomically(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "write_atomically", dies)
        with pytest.raises(KeyboardInterrupt):
            update_files(NEWER, tmp_path)
    assert update_files(NEWER, tmp_path).written == ("triton/Dockerfile",)

# SPDX-License-Identifier: Apache-2.0
"""Rendering: whole models or none, equal bytes, nobody else's folders touched."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import HostError, RepositoryError
from tritonctl.host.progress import Silent
from tritonctl.repository.contents import is_rendered
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.publish import RenderedRepository, render

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

MODELS = ("speller_tokenizer", "speller_engine", "speller_detokenizer", "speller")

# Renders the project argv[1] and kills itself instead of doing the rename number argv[2].
RENDER_AND_DIE = """
import os, signal, sys
from pathlib import Path
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.repository import publish as repository
left, rename = int(sys.argv[2]), os.rename
def dying(*arguments):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*arguments)
repository.os.rename = dying
repository.render(load_project(Path(sys.argv[1])), Silent())
"""


def _render(built: Sandbox) -> RenderedRepository:
    project = built.load()
    for name in project.models:
        build_engine(project, name, Silent())
    return render(project, Silent())


def _repository(built: Sandbox) -> Path:
    return built.root / "model_repository"


def _digests(folder: Path) -> dict[str, str]:
    """Every file below a folder and the hash of its content."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _hidden(built: Sandbox) -> list[str]:
    return [p.name for p in built.root.iterdir() if p.name.startswith(".model_repository")]


def _assert_whole(built: Sandbox) -> None:
    """Each folder of the repository has exactly the files of its plan."""
    plan = {m.name: {target for _, target in m.files} for m in plan_repository(built.load()).models}
    for folder in _repository(built).iterdir():
        files = set(_digests(folder))
        assert files == {"config.pbtxt"} | {f"1/{target}" for target in plan[folder.name]}
        assert (folder / "1").is_dir()
        assert is_rendered(folder)


def test_first_rendering(built: Sandbox) -> None:
    """Four models, the ensemble last and with an empty version folder; no staging left."""
    rendered = _render(built)
    assert rendered.changed == MODELS
    assert (rendered.unchanged, rendered.removed) == ((), ())
    assert {p.name for p in _repository(built).iterdir()} == set(MODELS)
    _assert_whole(built)
    assert list((_repository(built) / "speller" / "1").iterdir()) == []
    assert _hidden(built) == []


def test_nothing_points_outside(built: Sandbox) -> None:
    """No symbolic links: the repository can be copied or mounted alone."""
    _render(built)
    assert not [path for path in _repository(built).rglob("*") if path.is_symlink()]


def test_rendering_twice_changes_nothing(built: Sandbox) -> None:
    """Identical bytes, identical inodes, nothing reported as changed."""
    _render(built)
    before = _digests(_repository(built))
    inodes = {p: p.stat().st_ino for p in _repository(built).rglob("*")}
    again = _render(built)
    assert (again.changed, again.unchanged, again.removed) == ((), MODELS, ())
    assert _digests(_repository(built)) == before
    assert {p: p.stat().st_ino for p in _repository(built).rglob("*")} == inodes


def test_bytecode_of_a_running_server_is_no_change(built: Sandbox) -> None:
    """Triton's stubs write __pycache__ into the repository."""
    _render(built)
    cache = _repository(built) / "speller_engine" / "1" / "textlib" / "__pycache__"
    cache.mkdir()
    (cache / "x.cpython-311.pyc").touch()
    assert _render(built).changed == ()


def test_edited_model_is_rendered_again(built: Sandbox) -> None:
    """Lost, emptied, additional, edited files: only that one model, and as it was."""
    _render(built)
    before = _digests(_repository(built))
    folder = _repository(built) / "speller_engine"
    damages: list[Callable[[], object]] = [
        (folder / "1" / "model.py").unlink,
        lambda: (folder / "1" / "model.py").write_text("", encoding="utf-8"),
        (folder / "1" / "rubbish").touch,
        lambda: (folder / "config.pbtxt").write_text("# Rendered by tritonctl", "utf-8"),
    ]
    for damage in damages:
        damage()
        assert _digests(_repository(built)) != before
        assert _render(built).changed == ("speller_engine",)
        assert _digests(_repository(built)) == before


def test_lost_version_folder_of_the_ensemble_comes_back(built: Sandbox) -> None:
    """It is empty, so tools that carry only files lose it; Triton refuses a model without one."""
    _render(built)
    (_repository(built) / "speller" / "1").rmdir()
    assert _render(built).changed == ("speller",)
    assert (_repository(built) / "speller" / "1").is_dir()


def test_changed_settings_change_the_models(built: Sandbox) -> None:
    """New settings are in every header, so every model is published anew."""
    _render(built)
    built.serving["enable_prefix_caching"] = False
    assert _render(built).changed == MODELS
    text = (_repository(built) / "speller_engine" / "config.pbtxt").read_text(encoding="utf-8")
    assert 'string_value: "false"' in text


def test_code_is_copied_engines_are_linked(built: Sandbox) -> None:
    """Editing code in the repository does not edit its source; a large engine is not doubled."""
    rendered = _render(built)
    version = _repository(built) / "speller_engine" / "1"
    files = {m.name: {t: s for s, t in m.files} for m in rendered.plan.models}["speller_engine"]
    assert not (version / "model.py").samefile(files["model.py"])
    assert (version / "engine/openvino_model.bin").samefile(files["engine/openvino_model.bin"])


def test_foreign_folder_is_refused(built: Sandbox) -> None:
    """A model of somebody else's in the way: exit code 6, nothing changed."""
    foreign = _repository(built) / "speller_engine"
    foreign.mkdir(parents=True)
    (foreign / "config.pbtxt").write_text('name: "speller_engine"\n', encoding="utf-8")
    before = _digests(_repository(built))
    with pytest.raises(RepositoryError, match="exists and was not rendered by tritonctl") as caught:
        _render(built)
    assert str(foreign) in caught.value.problem
    assert caught.value.exit_code == 6
    assert _digests(_repository(built)) == before
    assert [p.name for p in _repository(built).iterdir()] == ["speller_engine"]


def test_foreign_neighbours_stay(built: Sandbox) -> None:
    """Other models and files of the repository are none of our business."""
    neighbour = _repository(built) / "other"
    neighbour.mkdir(parents=True)
    (neighbour / "config.pbtxt").write_text('name: "other"\n', encoding="utf-8")
    (_repository(built) / "README.md").write_text("mine\n", encoding="utf-8")
    _render(built)
    built.data["models"] = {"b": built.model()}
    _render(built)
    assert {p.name for p in _repository(built).iterdir()} == {
        "other",
        "README.md",
        "b",
        "b_tokenizer",
        "b_engine",
        "b_detokenizer",
    }


def test_dropped_model_is_removed(built: Sandbox) -> None:
    """What the project no longer names goes, ensembles before what they need."""
    built.data["models"]["b"] = built.model()
    _render(built)
    del built.data["models"]["b"]
    rendered = _render(built)
    assert rendered.removed == ("b", "b_detokenizer", "b_engine", "b_tokenizer")
    assert rendered.changed == ()
    assert {p.name for p in _repository(built).iterdir()} == set(MODELS)
    assert _render(built).removed == ()
    assert _hidden(built) == []


def test_dropped_model_that_somebody_replaced_stays(built: Sandbox) -> None:
    """A folder that is no longer ours is not ours to remove."""
    built.data["models"]["b"] = built.model()
    _render(built)
    (_repository(built) / "b" / "config.pbtxt").write_text('name: "b"\n', encoding="utf-8")
    del built.data["models"]["b"]
    assert "b" not in _render(built).removed
    assert (_repository(built) / "b").is_dir()


def test_repository_of_another_path_is_left_alone(built: Sandbox) -> None:
    """Choosing another model_repository empties no old one."""
    _render(built)
    built.data["model_repository"] = "elsewhere"
    rendered = _render(built)
    assert rendered.removed == ()
    assert {p.name for p in _repository(built).iterdir()} == set(MODELS)
    assert {p.name for p in (built.root / "elsewhere").iterdir()} == set(MODELS)


@pytest.mark.parametrize("record", ["", "{", '{"models": ["x"]}'])
def test_damaged_record_removes_nothing(built: Sandbox, record: str) -> None:
    """When in doubt, keep."""
    built.data["models"]["b"] = built.model()
    _render(built)
    (built.root / ".tritonctl" / "rendered.json").write_text(record, encoding="utf-8")
    del built.data["models"]["b"]
    assert _render(built).removed == ()
    assert (_repository(built) / "b").is_dir()


# Renames of a second rendering: per model one out of the way and one into place.
@pytest.mark.parametrize("rename", [1, 4, 8])
def test_kill_in_the_middle(built: Sandbox, rename: int) -> None:
    """kill -9 at any rename: only whole models are visible, and the next rendering repairs."""
    _render(built)
    built.serving["enable_prefix_caching"] = False
    built.write()
    _die_at(built, rename)
    _assert_whole(built)
    assert _hidden(built) == [".model_repository.staging"]
    after = _render(built)
    done = (rename - 1) // 2
    assert after.changed == MODELS[done:]
    assert after.unchanged == MODELS[:done]
    _assert_whole(built)
    assert {p.name for p in _repository(built).iterdir()} == set(MODELS)
    assert _hidden(built) == []


def test_kill_while_dropped_models_are_removed(built: Sandbox) -> None:
    """No half-removed model; the next rendering removes the rest."""
    built.data["models"]["b"] = built.model()
    whole = {m.name: _digests(_repository(built) / m.name) for m in _render(built).plan.models}
    del built.data["models"]["b"]
    built.write()
    _die_at(built, 3)
    for folder in _repository(built).iterdir():
        assert _digests(folder) == whole[folder.name]
    assert _render(built).removed == ("b_engine", "b_tokenizer")
    assert {p.name for p in _repository(built).iterdir()} == set(MODELS)


def _die_at(built: Sandbox, rename: int) -> None:
    argv = [sys.executable, "-c", RENDER_AND_DIE, str(built.file), str(rename)]
    assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL


def test_failure_between_the_two_renames_puts_the_old_model_back(
    built: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error (not a kill) while swapping: the model that was there is there."""
    _render(built)
    before = _digests(_repository(built))
    built.serving["enable_prefix_caching"] = False
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if "staging" in str(source) and not str(source).endswith(".replaced"):
            raise OSError(5, "Input/output error", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(HostError, match="Input/output error"):
        render(built.load(), Silent())
    assert _digests(_repository(built)) == before
    assert _hidden(built) == []


@pytest.fixture
def disk(small_disk: Path) -> Path:
    """One that has room for two repositories."""
    grow = ["/bin/mount", "-o", "remount,size=4m", str(small_disk)]
    subprocess.run(grow, check=True, capture_output=True)
    return small_disk


def test_disk_full(built: Sandbox, disk: Path) -> None:
    """HostError, the old models untouched, no staging left; with space again it works."""
    built.data["model_repository"] = str(disk / "repository")
    repository = disk / "repository"
    _render(built)
    before = _digests(repository)
    free = shutil.disk_usage(disk).free
    filler = disk / "filler"
    filler.write_bytes(b"x" * (free - 16_384))
    built.serving["enable_prefix_caching"] = False
    with pytest.raises(HostError, match="no space left while writing") as caught:
        _render(built)
    assert caught.value.exit_code == 4
    assert _digests(repository) == before
    assert {p.name for p in disk.iterdir()} == {"repository", "filler"}
    filler.unlink()
    assert _render(built).changed == MODELS


def test_repository_on_another_file_system(built: Sandbox, disk: Path) -> None:
    """Where hard links are impossible, artefacts are copied."""
    built.data["model_repository"] = str(disk / "repository")
    rendered = _render(built)
    target = disk / "repository" / "speller_engine" / "1" / "engine" / "openvino_model.bin"
    artefact = {t: s for s, t in rendered.plan.models[1].files}["engine/openvino_model.bin"]
    assert target.read_bytes() == artefact.read_bytes()
    assert not target.samefile(artefact)
    assert _render(built).changed == ()


def test_what_a_server_would_refuse_is_not_published(built: Sandbox) -> None:
    """The first mistake with its place, all of them in the details; the old models stay."""
    _render(built)
    before = _digests(_repository(built))
    batching = {"preferred_batch_size": [9999], "max_queue_delay_microseconds": 100}
    built.serving["config"] = {"tokenizer": {"dynamic_batching": batching}}
    with pytest.raises(RepositoryError, match="9999") as caught:
        _render(built)
    assert caught.value.problem.startswith("model_repository/speller_tokenizer/config.pbtxt:")
    assert caught.value.remedy.endswith("`tritonctl check --explain TC171` says more")
    assert _digests(_repository(built)) == before
    assert _hidden(built) == []


class _Heard(Silent):
    """What is said beside the steps."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)


def test_what_is_doubtful_is_said(built: Sandbox) -> None:
    """A queue that waits for two seconds is published, with a word about it."""
    batching = {"max_queue_delay_microseconds": 2_000_000}
    built.serving["config"] = {"tokenizer": {"dynamic_batching": batching}}
    for name in built.load().models:
        build_engine(built.load(), name, Silent())
    heard = _Heard()
    assert render(built.load(), heard).changed == MODELS
    [note] = heard.notes
    assert note.startswith("model_repository/speller_tokenizer/config.pbtxt:")
    assert "warning: " in note

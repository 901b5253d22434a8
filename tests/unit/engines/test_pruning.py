# SPDX-License-Identifier: Apache-2.0
"""Pruning: what goes, what stays and why, and that nothing is ever half there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.artefacts.pruning import ArtefactPruning, plan_pruning, prune
from tritonctl.engines.artefacts.store import stored_artefacts
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import BuildFailedError, HostError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_profiles
from tritonctl.store.entries import verify

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox, WaitUntil

# Prunes the project argv[1] and kills itself in place of the removal number argv[2].
PRUNE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from tritonctl.engines.artefacts import pruning
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_profiles
left, unlink = int(sys.argv[2]), os.unlink
def dying(*arguments, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    unlink(*arguments, **options)
os.unlink = dying
profiles = load_profiles(Path(sys.argv[1]))
pruning.prune(profiles, pruning.plan_pruning(profiles).folders, Silent())
"""


STAGES = """
[[stages]]
name = "quantise"
runners = ["current"]
ignores = ["limits.max_batch_size"]

[[stages]]
name = "compile"
runners = ["current"]
"""


@pytest.fixture
def staged(sandbox: Sandbox) -> Sandbox:
    """The sandbox, its builder in two stages; the batch size is the second one's alone."""
    file = sandbox.root / "builders" / "scripted" / "builder.toml"
    plain = file.read_text(encoding="utf-8").partition("[environment]")[0]
    plain = plain.replace('runners = ["current", "container"]\n', "")
    file.write_text(f"{plain}{STAGES}", encoding="utf-8")
    sandbox.engine["options"] = {}
    return sandbox


def _build(sandbox: Sandbox, size: int, *, made: int | None = None) -> Path:
    """Build the model for a batch of `size`, which stays in the project file."""
    sandbox.engine["max_batch_size"] = size
    folder = build_engine(sandbox.load(), "speller", Silent()).folder
    if made is not None:
        os.utime(folder / "manifest.json", (made, made))
    return folder


def _planned(sandbox: Sandbox, **options: Any) -> ArtefactPruning:
    return plan_pruning(load_profiles(sandbox.file, environment={}), **options)


def _prune(sandbox: Sandbox, **options: Any) -> ArtefactPruning:
    profiles = load_profiles(sandbox.file, environment={})
    return prune(profiles, plan_pruning(profiles, **options).folders, Silent(), **options)


def _removed(pruning: ArtefactPruning) -> set[Path]:
    return {stored.folder for stored in pruning.removed}


def _fingerprint(folder: Path) -> str:
    fingerprint = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["fingerprint"]
    assert isinstance(fingerprint, str)
    return fingerprint


def _made_from(folder: Path, source: Path) -> None:
    """Say in a manifest that its artefact was made from another one."""
    manifest = folder / "manifest.json"
    record = json.loads(manifest.read_text(encoding="utf-8"))
    status = manifest.stat()
    manifest.write_text(json.dumps(record | {"source": _fingerprint(source)}), encoding="utf-8")
    os.utime(manifest, (status.st_atime, status.st_mtime))


def _link(sandbox: Sandbox, folder: Path) -> None:
    """What rendering does with an engine's file."""
    repository = sandbox.root / "model_repository"
    repository.mkdir(exist_ok=True)
    os.link(folder / "engine" / "openvino_model.bin", repository / "linked.bin")


def test_what_nobody_needs_goes(built: Sandbox) -> None:
    """The bytes are those of the files; the needed engine stays whole."""
    stray, needed = _build(built, 2), _build(built, 4)
    size = sum(path.stat().st_size for path in stray.rglob("*") if path.is_file())
    planned = _planned(built)
    assert (_removed(planned), planned.freed_bytes) == ({stray}, size)
    assert stray.exists()
    done = _prune(built)
    assert (_removed(done), done.freed_bytes) == ({stray}, size)
    (left,) = stored_artefacts(built.load())
    assert left.folder == needed
    assert verify(left, Silent()) == []
    assert _planned(built).folders == ()


def test_every_profile_counts(built: Sandbox) -> None:
    """An engine that only another profile needs stays; without the profile it goes."""
    other, _ = _build(built, 2), _build(built, 4)
    engine = {"models": {"speller": {"engine": {"max_batch_size": 2}}}}
    built.data["profiles"] = {"small": engine}
    built.write()
    assert _planned(built).folders == ()
    del built.data["profiles"]
    built.write()
    assert _removed(_planned(built)) == {other}


def test_keep_the_newest(built: Sandbox) -> None:
    """--keep counts what nobody needs, newest first."""
    old, young = _build(built, 1, made=1000), _build(built, 2, made=2000)
    _build(built, 4)
    assert _removed(_planned(built)) == {old, young}
    assert _removed(_planned(built, keep=1)) == {old}
    assert _removed(_planned(built, keep=2)) == set()


def test_linked_engines_stay(built: Sandbox) -> None:
    """A repository that was rendered earlier may still be served; unlinked, the engine goes."""
    served, _ = _build(built, 2), _build(built, 4)
    _link(built, served)
    assert _planned(built).folders == ()
    (built.root / "model_repository" / "linked.bin").unlink()
    assert _removed(_planned(built)) == {served}


def test_bytes_with_another_name_are_not_freed(built: Sandbox) -> None:
    """A backup by hard links keeps its bytes on the disk."""
    stray, _ = _build(built, 2), _build(built, 4)
    whole = _planned(built).freed_bytes
    engine = stray / "engine" / "openvino_model.bin"
    os.link(engine, built.root / "backup.bin")
    assert _prune(built).freed_bytes == whole - (built.root / "backup.bin").stat().st_size


def test_sources_stay_with_their_engine(built: Sandbox) -> None:
    """Unless --sources says otherwise; a source is never counted by --keep."""
    quantised, compiled = _build(built, 1, made=2000), _build(built, 2, made=1000)
    _build(built, 4)
    _made_from(compiled, quantised)
    _link(built, compiled)
    assert _planned(built).folders == ()
    assert _removed(_planned(built, sources=True)) == {quantised}
    (built.root / "model_repository" / "linked.bin").unlink()
    assert _removed(_planned(built)) == {quantised, compiled}
    assert _removed(_planned(built, keep=1)) == set()
    assert _removed(_planned(built, keep=1, sources=True)) == {quantised}


def test_stages_of_real_builds(staged: Sandbox) -> None:
    """An engine of other sizes came from the same first stage, which stays; --sources drops it."""
    old, new = _build(staged, 2), _build(staged, 4)
    (quantised,) = old.parent.glob("quantise-*")
    assert _removed(_planned(staged)) == {old}
    assert _removed(_planned(staged, sources=True)) == {old, quantised}
    assert _removed(_prune(staged, sources=True)) == {old, quantised}
    assert build_engine(staged.load(), "speller", Silent()).folder == new


def test_finished_stages_of_an_unfinished_engine_stay(staged: Sandbox) -> None:
    """The next build goes on behind them, --sources or not."""
    staged.engine["options"] = {"compile": {"behaviour": "crash"}}
    with pytest.raises(BuildFailedError):
        _build(staged, 2)
    (quantised,) = stored_artefacts(staged.load())
    assert quantised.folder.name.startswith("quantise-")
    assert _planned(staged, sources=True).folders == ()
    staged.engine["precision"] = "fp32"
    staged.write()
    assert _removed(_planned(staged)) == {quantised.folder}


def test_models_that_the_project_dropped(built: Sandbox) -> None:
    """Their engines go, and the empty folder with them."""
    folder = _build(built, 4)
    built.data["models"] = {"renamed": built.model()}
    built.write()
    assert _removed(_prune(built)) == {folder}
    assert not folder.parent.exists()


def test_models_that_cannot_be_judged_stay(built: Sandbox) -> None:
    """Without the checkpoint nobody knows which engine is the present one."""
    _build(built, 2)
    os.rename(built.checkpoint, built.root / "away")
    assert _planned(built).folders == ()


def test_folders_without_a_manifest_are_not_ours(built: Sandbox) -> None:
    """No build leaves such a one; a manifest that cannot be read is a build's, though."""
    store = _build(built, 4).parent
    (store / "notes").mkdir()
    (store / "damaged").mkdir()
    (store / "damaged" / "manifest.json").write_text("{", encoding="utf-8")
    assert _removed(_prune(built)) == {store / "damaged"}
    assert (store / "notes").is_dir()


def test_what_is_being_built_stays(sandbox: Sandbox, cli: Cli, wait_until: WaitUntil) -> None:
    """Old engines of that model and its staging folder are left alone until the build is done."""
    stray = _build(sandbox, 2)
    gate = sandbox.root / "gate"
    sandbox.engine["options"]["gate"] = str(gate)
    sandbox.write()
    with cli.start("build") as process:
        wait_until(lambda: sandbox.run_count() == 2)
        planned = _planned(sandbox)
        assert (planned.folders, planned.busy_models) == ((), ("speller",))
        assert _prune(sandbox).folders == ()
        gate.touch()
        process.communicate()
    assert process.returncode == 0
    assert _removed(_prune(sandbox)) == {stray}


def test_leftovers_of_killed_builds_go(sandbox: Sandbox, cli: Cli, wait_until: WaitUntil) -> None:
    """A staging folder whose build was killed outright is gigabytes that nobody finds."""
    sandbox.behave("ok", gate=str(sandbox.root / "gate"))
    with cli.start("build") as process:
        wait_until(sandbox.run_count)
        process.kill()
    for pid in sandbox.builder_processes()[0]:
        os.kill(pid, signal.SIGKILL)
    (left,) = _planned(sandbox).leftovers
    assert left.parent.name == "staging"
    done = _prune(sandbox)
    assert done.leftovers == (left,)
    assert done.freed_bytes > 0
    assert sandbox.files_below("staging") == []


@pytest.mark.parametrize("removal", range(1, 10))
def test_killed_at_any_moment(built: Sandbox, removal: int) -> None:
    """What is listed afterwards is whole; the next prune removes the rest."""
    stray, needed = _build(built, 2), _build(built, 4)
    argv = [sys.executable, "-c", PRUNE_AND_DIE, str(built.file), str(removal)]
    assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL
    (left,) = stored_artefacts(built.load())
    assert left.folder == needed
    assert verify(left, Silent()) == []
    assert _prune(built).leftovers == (stray.with_name(f".removed-{stray.name}"),)
    assert [path.name for path in needed.parent.iterdir()] == [needed.name]


def test_only_what_was_chosen_goes(built: Sandbox) -> None:
    """What appears between the question and the answer was not asked about."""
    first, _ = _build(built, 1), _build(built, 4)
    profiles = load_profiles(built.file, environment={})
    chosen = plan_pruning(profiles).folders
    second, _ = _build(built, 2), _build(built, 4)
    assert _removed(prune(profiles, chosen, Silent())) == {first}
    assert second.exists()


def test_what_became_needed_stays(built: Sandbox) -> None:
    """Looked at again under the lock: the project may have changed its mind meanwhile."""
    stray, _ = _build(built, 2), _build(built, 4)
    chosen = _planned(built).folders
    assert chosen == (stray,)
    built.engine["max_batch_size"] = 2
    built.write()
    profiles = load_profiles(built.file, environment={})
    assert prune(profiles, chosen, Silent()).folders == ()
    assert stray.exists()


def test_a_folder_that_cannot_be_removed(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal is told with a remedy."""
    _build(built, 2)
    _build(built, 4)

    def refuse(*paths: object) -> None:
        raise PermissionError(13, "Permission denied", str(paths[0]))

    monkeypatch.setattr("tritonctl.store.folders.os.rename", refuse)
    with pytest.raises(HostError, match="no permission to write") as caught:
        _prune(built)
    assert "make" in caught.value.remedy

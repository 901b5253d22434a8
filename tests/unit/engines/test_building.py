# SPDX-License-Identifier: Apache-2.0
"""Building through a real builder process: kept contract, every broken one, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.engines.artefacts.manifest import read_manifest
from tritonctl.engines.builds.engine import Artefact, build_engine, built_engine
from tritonctl.errors import BuildFailedError, HostError, RepositoryError, TritonctlError
from tritonctl.host.progress import Silent

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

ARTEFACT = {
    "engine/openvino_model.bin",
    "engine/openvino_model.xml",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
}


def _build(sandbox: Sandbox, *, force: bool = False) -> Artefact:
    return build_engine(sandbox.load(), "speller", Silent(), force=force)


def _refused(sandbox: Sandbox) -> TritonctlError:
    with pytest.raises(TritonctlError) as caught:
        _build(sandbox)
    return caught.value


def test_build_publishes_artefact_manifest_log_and_script(sandbox: Sandbox) -> None:
    """Everything in one folder, named by the fingerprint; staging is empty."""
    artefact = _build(sandbox)
    assert artefact.is_new
    name = artefact.manifest.fingerprint[:16]
    assert artefact.folder == sandbox.root / ".tritonctl" / "engines" / "speller" / name
    files = {p.relative_to(artefact.folder).as_posix() for p in artefact.folder.rglob("*.*")}
    assert files == ARTEFACT | {
        "manifest.json",
        "build.log",
        "request.json",
        "result.json",
        "reproduce.sh",
    }
    log = (artefact.folder / "build.log").read_text(encoding="utf-8")
    assert log == "scripted builder for speller\n@stage load\n@stage convert\n"
    assert sandbox.files_below("staging", "failed-builds") == []


def test_request_of_the_builder(sandbox: Sandbox) -> None:
    """The contract's fields, absolute paths, the project's settings."""
    prompts = sandbox.root / "prompts.jsonl"
    prompts.write_text("{}\n", encoding="utf-8")
    sandbox.data["models"]["speller"]["evaluation"] = {"prompts": "prompts.jsonl"}
    text = (_build(sandbox).folder / "request.json").read_text(encoding="utf-8")
    assert json.loads(text) == {
        "schema": "tritonctl.build/1",
        "model": "speller",
        "checkpoint": str(sandbox.checkpoint),
        "precision": "int8",
        "limits": {
            "max_batch_size": 4,
            "max_input_len": None,
            "max_seq_len": 64,
            "max_num_tokens": None,
            "max_beam_width": 1,
            "tp_size": 1,
            "pp_size": 1,
        },
        "kv_cache_dtype": None,
        "trust_remote_code": False,
        "allow_pickle": False,
        "options": {"behaviour": "ok", "runs": "runs.txt"},
        "evaluation": {
            "prompts": str(prompts),
            "max_prompts": 200,
            "max_tokens": 64,
            "min_exact_match": None,
        },
        "stage": None,
        "source": None,
        "target": None,
        "calibration": None,
    }


def test_second_build_does_nothing(sandbox: Sandbox) -> None:
    """Equal fingerprint: the builder is not even started."""
    first, second = _build(sandbox), _build(sandbox)
    assert (first.is_new, second.is_new) == (True, False)
    assert first.folder == second.folder
    assert sandbox.run_count() == 1


def test_force_builds_again(sandbox: Sandbox) -> None:
    """--force replaces the artefact whole."""
    folder = _build(sandbox).folder
    (folder / "rubbish").touch()
    again = _build(sandbox, force=True)
    assert again.is_new
    assert again.folder == folder
    assert not (folder / "rubbish").exists()
    assert sandbox.run_count() == 2
    assert sandbox.files_below("staging") == []


def test_old_engine_survives_a_failing_forced_build(sandbox: Sandbox) -> None:
    """What works is replaced by what works, or not at all."""
    toggle = sandbox.root / "builders" / "scripted" / ".crash"  # hidden: not in the fingerprint
    script = sandbox.root / "builders" / "scripted" / "build.py"
    source = script.read_text(encoding="utf-8")
    marker = "    request = json.loads("
    assert marker in source
    trap = '    if (Path(__file__).parent / ".crash").exists():\n        return 9\n'
    script.write_text(source.replace(marker, trap + marker), encoding="utf-8")
    before = _build(sandbox)
    toggle.touch()
    with pytest.raises(BuildFailedError, match=r"died while building speller \(status 9\)"):
        _build(sandbox, force=True)
    assert read_manifest(before.folder) == before.manifest
    assert (before.folder / "engine" / "openvino_model.bin").is_file()
    assert sandbox.files_below("staging") == []


def test_other_settings_are_another_engine_and_both_stay(sandbox: Sandbox) -> None:
    """Going back to the old settings builds nothing."""
    _build(sandbox)
    sandbox.engine["precision"] = "fp32"
    _build(sandbox)
    sandbox.engine["precision"] = "int8"
    assert not _build(sandbox).is_new
    assert sandbox.run_count() == 2


BROKEN = [
    ("refuses", "speller: precision int8 is out of fashion", "choose another one (log: "),
    ("crash", "builder scripted died while building speller (status 1)", "read "),
    ("killed", "builder scripted died while building speller (status killed)", "most likely"),
    (
        "no_result",
        "speller: builder scripted exited without writing a result",
        "this is a defect of",
    ),
    (
        "malformed_result",
        "speller: builder scripted wrote a malformed result: `limits.max_batch_size`: expected",
        "this is a defect of builders/scripted",
    ),
    (
        "not_json",
        "speller: builder scripted wrote a malformed result: not JSON: ",
        "this is a defect of",
    ),
    (
        "refuses_badly",
        "speller: builder scripted wrote a malformed result: `remedy` is missing",
        "this is a defect of",
    ),
    (
        "lies_about_hash",
        "builder scripted reported engine/openvino_model.bin, but the file is missing or diff",
        "run the build again",
    ),
    (
        "names_file_outside",
        "speller: builder scripted wrote a malformed result: `files.0.path`: the path",
        "this is a defect of builders/scripted",
    ),
    (
        "ok_but_exit_1",
        "speller: builder scripted reported success but exited with status 1",
        "read ",
    ),
]


@pytest.mark.parametrize(("behaviour", "problem", "remedy"), BROKEN, ids=[b[0] for b in BROKEN])
def test_broken_build(sandbox: Sandbox, behaviour: str, problem: str, remedy: str) -> None:
    """Exit code 5, what was wrong, and on disk nothing but the log."""
    sandbox.behave(behaviour)
    error = _refused(sandbox)
    assert isinstance(error, BuildFailedError)
    assert error.exit_code == 5
    assert error.problem.startswith(problem)
    assert error.remedy.startswith(remedy)
    assert sandbox.files_below("engines", "staging", "failed-builds") == [
        "failed-builds/speller.log"
    ]
    log = sandbox.root / ".tritonctl" / "failed-builds" / "speller.log"
    assert "@stage convert" in log.read_text(encoding="utf-8")


def test_crash_shows_the_traceback(sandbox: Sandbox) -> None:
    """The builder's last words are in the error and in the log that the error names."""
    sandbox.behave("crash")
    error = _refused(sandbox)
    assert "ZeroDivisionError: a bug of the builder" in (error.details or "")
    log = Path(error.remedy.removeprefix("read "))
    assert "ZeroDivisionError: a bug of the builder" in log.read_text(encoding="utf-8")


def test_a_missing_result_shows_the_last_lines(sandbox: Sandbox) -> None:
    """A tool that ends with status 0 and leaves nothing has often said why."""
    sandbox.behave("no_result")
    error = _refused(sandbox)
    assert "@stage convert" in (error.details or "")
    assert "failed-builds/speller.log" in error.remedy


def test_a_refusal_is_not_marked_as_done(sandbox: Sandbox, cli: Cli) -> None:
    """The plain line of a step that failed."""
    sandbox.behave("refuses")
    sandbox.load()
    done = cli("build")
    assert done.returncode == 5
    assert "✗ Building speller" in done.stderr
    assert "✓ Building" not in done.stderr


def test_build_works_again_after_a_failure(sandbox: Sandbox) -> None:
    """A failed build stands in nobody's way."""
    sandbox.behave("crash")
    _refused(sandbox)
    sandbox.behave("ok")
    assert _build(sandbox).is_new


def test_leftover_of_a_killed_build_is_removed(sandbox: Sandbox) -> None:
    """A staging folder from before a kill -9 does not end up in the artefact."""
    fingerprint = _build(sandbox).manifest.fingerprint
    staging = sandbox.root / ".tritonctl" / "staging" / f"speller-{fingerprint[:16]}"
    staging.mkdir(parents=True)
    (staging / "rubbish").touch()
    folder = _build(sandbox, force=True).folder
    assert not (folder / "rubbish").exists()
    assert not staging.exists()


def test_artefact_without_manifest_is_made_anew(sandbox: Sandbox) -> None:
    """The manifest is what makes an artefact one."""
    artefact = _build(sandbox)
    (artefact.folder / "manifest.json").unlink()
    with pytest.raises(RepositoryError):
        built_engine(sandbox.load(), "speller")
    assert _build(sandbox).is_new


def test_disk_full_while_publishing(sandbox: Sandbox, small_disk: Path) -> None:
    """HostError, no artefact, no staging folder, and the space is free again."""
    shutil.copytree(sandbox.root, small_disk / "project")
    sandbox.root = small_disk / "project"
    sandbox.behave("fills_disk")
    free = shutil.disk_usage(small_disk).free
    error = _refused(sandbox)
    assert isinstance(error, HostError)
    assert error.exit_code == 4
    assert "no space left while writing" in error.problem
    assert sandbox.files_below("engines", "staging") == []
    assert shutil.disk_usage(small_disk).free > free - 50_000
    sandbox.behave("ok")
    assert _build(sandbox).is_new


def test_built_engine_needs_a_build_of_the_present_settings(sandbox: Sandbox) -> None:
    """Exit code 6 and the command to type; found once it is built; stale after a change."""
    with pytest.raises(RepositoryError, match="model speller has no engine for its") as caught:
        built_engine(sandbox.load(), "speller")
    assert caught.value.exit_code == 6
    assert caught.value.remedy == "run `tritonctl build speller`"
    built = _build(sandbox)
    assert built_engine(sandbox.load(), "speller").folder == built.folder
    (sandbox.checkpoint / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(RepositoryError):
        built_engine(sandbox.load(), "speller")


def test_manifest_round_trip(sandbox: Sandbox) -> None:
    """What was written is what is read, and it says where the engine came from."""
    artefact = _build(sandbox)
    manifest = read_manifest(artefact.folder)
    assert manifest == artefact.manifest
    assert (manifest.builder, manifest.python_backend) == ("scripted", "openvino_engine")
    assert manifest.request.checkpoint == str(sandbox.checkpoint)
    assert {file.path for file in manifest.result.files} == ARTEFACT
    assert manifest.result.limits.max_input_len == 63


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"schema": "tritonctl.manifest/2"}'])
def test_damaged_manifest(sandbox: Sandbox, damage: str) -> None:
    """Exit code 6 with the file's path and `build --force`, which repairs it."""
    artefact = _build(sandbox)
    (artefact.folder / "manifest.json").write_text(damage, encoding="utf-8")
    error = _refused(sandbox)
    assert isinstance(error, RepositoryError)
    assert str(artefact.folder / "manifest.json") in error.problem
    assert "build --force" in error.remedy
    assert _build(sandbox, force=True).manifest == artefact.manifest


def test_reproduce_script_makes_the_same_files(sandbox: Sandbox, tmp_path: Path) -> None:
    """Run by hand in an empty folder it makes the artefact again, byte for byte."""
    artefact = _build(sandbox)
    here = tmp_path / "by hand"
    here.mkdir()
    script = artefact.folder / "reproduce.sh"
    assert os.access(script, os.X_OK)
    subprocess.run([script], cwd=here, check=True, capture_output=True)
    for name in ARTEFACT | {"result.json"}:
        assert (here / name).read_bytes() == (artefact.folder / name).read_bytes()


def test_builder_does_not_see_our_python_settings(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PYTHONPATH stays here; the hub is off limits; output is UTF-8."""
    seen = tmp_path / "seen.json"
    script = sandbox.root / "builders" / "scripted" / "build.py"
    line = f"Path({str(seen)!r}).write_text(json.dumps(dict(os.environ)))\n"
    source = script.read_text(encoding="utf-8").replace(
        "BEHAVIOURS: dict", f"{line}BEHAVIOURS: dict"
    )
    script.write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("SOME_PROXY", "kept")
    _build(sandbox)
    environment = json.loads(seen.read_text(encoding="utf-8"))
    assert "PYTHONPATH" not in environment
    assert environment["SOME_PROXY"] == "kept"
    assert (environment["HF_HUB_OFFLINE"], environment["PYTHONUTF8"]) == ("1", "1")


def test_models_with_dots_in_their_names(sandbox: Sandbox) -> None:
    """`a.b` and `a.c` keep out of each other's way."""
    sandbox.data["models"] = {"a.b": sandbox.model(), "a.c": sandbox.model()}
    project = sandbox.load()
    folders = {build_engine(project, name, Silent()).folder for name in ("a.b", "a.c")}
    assert len(folders) == 2
    assert build_engine(project, "a.b", Silent(), force=True).is_new
    assert sandbox.files_below("staging") == []

# SPDX-License-Identifier: Apache-2.0
"""Releases: whole or none, numbered once, never changed by what is built or rendered later."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.json_page import as_documented
from tests.unit.releases.releasing import (
    change,
    passed,
    released,
    released_once,
    releases,
    uncompiled,
)
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import HostError, RepositoryError, ServerError, UsageError
from tritonctl.host.progress import Silent
from tritonctl.releases import publish as publishing
from tritonctl.releases import staging
from tritonctl.releases.manifest import SmokeTestSummary, read_release
from tritonctl.releases.publish import publish, without_secrets
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.store import StoredRelease, find_release, stored_releases
from tritonctl.repository.contents import handwritten
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.publish import render
from tritonctl.repository.server_environment import server_recipe
from tritonctl.store.entries import require_unchanged, verify
from tritonctl.store.folders import remove_tree

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

__all__ = ["released_once", "releases", "uncompiled"]  # fixtures

MODELS = ["speller", "speller_detokenizer", "speller_engine", "speller_tokenizer"]
ENGINE = "repository/speller_engine/{}/engine/openvino_model.bin"


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _visible(built: Sandbox) -> list[str]:
    return sorted(p.name for p in (built.root / "releases").iterdir() if p.name[0] != ".")


def test_a_release_is_the_repository_under_its_number(built: Sandbox) -> None:
    """Every model with the number as its version folder, engines linked, nothing writable."""
    change(built)
    first = released(built).stored
    change(built, 200)
    done = released(built)
    stored, release = done.stored, done.stored.manifest()
    assert done.fresh
    assert (release.number, release.parent) == (2, first.name)
    assert _visible(built) == [first.name, stored.name]
    assert sorted(path.name for path in stored.repository.iterdir()) == MODELS
    for model in MODELS:
        folders = [p.name for p in (stored.repository / model).iterdir() if p.is_dir()]
        assert folders == ["2"], model
    engine = stored.folder / ENGINE.format(2)
    assert engine.samefile(
        built.root / "model_repository/speller_engine/1/engine/openvino_model.bin"
    )
    for path in [stored.folder, *stored.folder.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o222, path
    assert verify(stored, Silent()) == []


def test_the_same_content_is_published_once(built: Sandbox) -> None:
    """Whatever its number would be, and whenever."""
    first = released(built)
    again = released(built)
    assert (again.fresh, again.stored.folder) == (False, first.stored.folder)
    change(built)
    other = released(built)
    del built.serving["config"]
    back = released(built)
    assert other.fresh
    assert back.stored.name == first.stored.name
    assert _visible(built) == [first.stored.name, other.stored.name]
    assert not list((built.root / "releases").glob(".staging-*"))


def test_equal_projects_have_equal_hashes(built: Sandbox, tmp_path: Path) -> None:
    """Wherever they lie, whatever number it gets there."""
    first = released(built).stored.manifest()
    other = type(built)(tmp_path / "elsewhere")
    other.take_engine_of(built)
    change(other)
    released(other)
    del other.serving["config"]
    second = released(other).stored.manifest()
    assert (first.number, second.number) == (1, 2)
    assert first.hash == second.hash


def test_building_and_rendering_change_no_release(built: Sandbox) -> None:
    """Files are replaced, not written to: a release keeps what it had, byte for byte."""
    stored = released(built).stored
    before = _digests(stored.folder)
    built.behave("ok", seed=7)
    build_engine(built.load(), "speller", Silent(), force=True)
    code = built.root / "model_repository" / "speller_tokenizer" / "1" / "model.py"
    code.write_text("# edited in place\n", encoding="utf-8")
    second = released(built).stored
    assert second.name != stored.name
    assert _digests(stored.folder) == before
    assert verify(stored, Silent()) == []
    assert verify(second, Silent()) == []


def _forked(work: Callable[[], object]) -> int:
    """The process that does it, ends without cleaning up, and says whether it came to its end."""
    if (pid := os.fork()) == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def _status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("module", "function", "call"),
    [
        (publishing, "write_release", 2),
        (os, "rename", 1),
        *(
            pytest.param(module, name, 1, marks=pytest.mark.exhaustive)
            for module, name in (
                (staging, "place_models"),
                (staging, "describe_files"),
                (staging, "seal"),
                (publishing, "record_number"),
            )
        ),
    ],
)
def test_killed_at_any_step_nothing_looks_finished(
    built: Sandbox, module: ModuleType, function: str, call: int
) -> None:
    """The release appears with the rename; what a killed command left goes with the next one."""
    released(built)
    change(built)
    render(built.load(), Silent())
    calls, real = iter(range(1, 99)), getattr(module, function)

    def dying(*arguments: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    def publish_and_die() -> None:
        setattr(module, function, dying)
        released(built)

    assert _status(_forked(publish_and_die)) == -signal.SIGKILL
    assert [one.number for one in stored_releases(built.load())] == [1]
    assert list((built.root / "releases").glob(".staging-2"))
    after = released(built)
    assert after.fresh
    assert verify(after.stored, Silent()) == []
    assert not list((built.root / "releases").glob(".staging-*"))


def test_interrupted_while_it_is_asked(built: Sandbox) -> None:
    """Ctrl-C, or a bad answer: no release, no staging, and the number is free."""

    def interrupted(*_: object) -> SmokeTestSummary:
        raise KeyboardInterrupt

    def wrong(*_: object) -> SmokeTestSummary:
        raise ServerError("speller: answers: nothing", remedy="look")

    for trial, error in ((interrupted, KeyboardInterrupt), (wrong, ServerError)):
        with pytest.raises(error):
            released(built, trial)
        assert [p.name for p in (built.root / "releases").iterdir()] == [".lock"]
    assert released(built).stored.number == 1


def test_two_that_publish_get_two_numbers(built: Sandbox) -> None:
    """Processes wait for each other."""
    children = []
    for delay in (100, 200):
        change(built, delay)
        built.data["model_repository"] = f"repository-{delay}"
        children.append(_forked(partial(publish, built.load(), Silent(), passed)))
    assert [_status(child) for child in children] == [0, 0]
    releases = stored_releases(built.load())
    assert [one.number for one in releases] == [1, 2]
    assert len({one.manifest().hash for one in releases}) == 2
    assert releases[1].manifest().parent == releases[0].name


def test_a_number_is_given_once(built: Sandbox) -> None:
    """Also when its release has gone: figures of the past would be taken for the new one's."""
    stored = released(built).stored
    remove_tree(stored.folder)
    assert released(built).stored.number == 2


def test_an_engine_that_is_not_what_was_built_is_refused(built: Sandbox) -> None:
    """The digest in the artefact's manifest counts, not what lies there."""
    [engine] = (built.root / ".tritonctl/engines/speller").glob("*/engine/openvino_model.bin")
    engine.write_bytes(b"damaged" + engine.read_bytes()[7:])
    with pytest.raises(RepositoryError, match="is not what was built"):
        released(built)
    assert not stored_releases(built.load())


def test_damage_is_found(releases: list[StoredRelease]) -> None:
    """Another byte, another size, a missing file, one too many, a permission, another manifest."""
    stored = releases[0]
    folder = stored.folder / "repository/speller_engine/1"
    folder.chmod(0o755)
    code, engine = folder / "model.py", folder / "engine/openvino_model.bin"
    code.chmod(0o644)
    [finding] = verify(stored, Silent())
    assert (finding.kind, finding.path) == ("mode", "repository/speller_engine/1/model.py")
    (folder / "extra.txt").write_text("x", encoding="utf-8")
    code.unlink()
    (engine.parent).chmod(0o755)
    engine.unlink()
    engine.write_bytes(b"x")
    kinds = {finding.kind for finding in verify(stored, Silent())}
    assert kinds == {"missing", "different", "extra"}
    with pytest.raises(RepositoryError, match="not as it was published") as caught:
        require_unchanged(stored, Silent())
    assert "tritonctl releases publish" in caught.value.remedy


def test_a_manifest_that_was_changed_is_found(
    built: Sandbox, releases: list[StoredRelease]
) -> None:
    """Files and their digests together: the hash in the folder's name tells."""
    stored = releases[0]
    stored.folder.chmod(0o755)
    code = stored.folder / "repository/speller_engine/1/model.py"
    manifest = stored.folder / "release.json"
    for path in (code, manifest, code.parent):
        path.chmod(0o755)
    code.write_text("import os\n", encoding="utf-8")
    code.chmod(0o444)
    record = json.loads(manifest.read_text(encoding="utf-8"))
    [entry] = [f for f in record["files"] if f["path"].endswith("speller_engine/1/model.py")]
    text = code.read_bytes()
    entry |= {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    manifest.write_text(json.dumps(record), encoding="utf-8")
    changed = stored_releases(built.load())[0]
    [finding] = verify(changed, Silent())
    assert (finding.kind, "hash of its files differs" in finding.detail) == ("manifest", True)


def test_a_malformed_manifest_is_listed_and_told(
    built: Sandbox, releases: list[StoredRelease]
) -> None:
    """Others are still found; a path that leads out is none of a release."""
    stored = releases[0]
    manifest = stored.folder / "release.json"
    stored.folder.chmod(0o755)
    manifest.chmod(0o644)
    record = json.loads(manifest.read_text(encoding="utf-8"))
    record["files"][0]["path"] = "../../etc/passwd"
    manifest.write_text(json.dumps(record), encoding="utf-8")
    listed = stored_releases(built.load())[0]
    assert listed.problem is not None
    assert "leads out of the folder" in listed.problem
    with pytest.raises(RepositoryError, match="cannot be read"):
        listed.manifest()


def test_addresses(releases: list[StoredRelease]) -> None:
    """A number, a name, its beginning, `latest`; the candidates where none matches."""
    first, last = releases
    for address in ("1", first.name, first.name[:6]):
        assert find_release(releases, address).folder == first.folder
    assert find_release(releases, "latest") == last
    with pytest.raises(UsageError, match="no release `7`") as caught:
        find_release(releases, "7")
    assert first.name in caught.value.remedy
    with pytest.raises(UsageError) as empty:
        find_release([], "latest")
    assert "tritonctl releases publish" in empty.value.remedy


def test_a_release_is_served_without_the_project_of_then(
    built: Sandbox, releases: list[StoredRelease]
) -> None:
    """Its models, not those of the project file now; its steps are none written by hand."""
    stored = releases[0]
    built.data["models"]["renamed"] = built.data["models"].pop("speller")
    built.data["server"]["grpc_port"] = 8101
    project, rendered = rendered_release(built.load(), stored)
    assert list(project.models) == ["speller"]
    assert project.server.grpc_port == 8101
    assert project.repository == stored.repository
    assert rendered.plan.model_names == MODELS
    assert handwritten(project, project.public) == ()
    assert rendered.plan.release is not None
    assert rendered.plan.programs[-1].requirements


def test_a_release_brings_its_locks(built: Sandbox) -> None:
    """It is served with verified packages, in the environment that serves it unreleased."""
    first = released(built)
    _, rendered = rendered_release(built.load(), first.stored)
    recipe = server_recipe(rendered.plan.programs)
    assert len(recipe.installs) == 1
    unreleased = server_recipe(plan_repository(built.load()).programs)
    assert recipe.fingerprint() == unreleased.fingerprint()
    assert all(path.endswith(".txt") for path in first.stored.manifest().requirements)


def test_a_cached_model_keeps_the_version_of_its_content(tmp_path: Path) -> None:
    """A cache may be shared with other machines, whose release 2 is another one."""
    config = 'name: "{}" {}'
    cached = config.format("cached", "response_cache { enable: true }")
    content = str(2**40)
    models = (
        PlannedModel("cached", "front", cached, (), content),
        PlannedModel("front", "front", config.format("front", ""), (), content),
    )
    placed = staging.place_models(
        RepositoryPlan(models, (), (), {}), tmp_path / "from", tmp_path, 2
    )
    assert {m.name: m.version for m in placed.models} == {"cached": content, "front": "2"}
    assert (tmp_path / "repository" / "cached" / content).is_dir()
    assert (tmp_path / "repository" / "front" / "2").is_dir()


def test_models_by_hand_are_copied(built: Sandbox) -> None:
    """With the versions they have, and without a link that an edit would follow."""
    folder = built.root / "model_repository" / "mine"
    (folder / "4").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'name: "mine" backend: "python" max_batch_size: 0\n'
        'input { name: "I" data_type: TYPE_INT32 dims: 1 }\n'
        'output { name: "O" data_type: TYPE_INT32 dims: 1 }\n',
        encoding="utf-8",
    )
    code = folder / "4" / "model.py"
    code.write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError\n",
        encoding="utf-8",
    )
    stored = released(built).stored
    lies = stored.repository / "mine" / "4" / "model.py"
    assert not lies.samefile(code)
    assert stat.S_IMODE(code.stat().st_mode) & 0o200
    [mine] = [m for m in stored.manifest().models if m.name == "mine"]
    assert mine.version is None
    _, rendered = rendered_release(built.load(), stored)
    assert [model.name for model in rendered.plan.handwritten] == ["mine"]
    code.write_text("# edited\n", encoding="utf-8")
    assert verify(stored, Silent()) == []


def test_no_links_no_release_of_links(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another file system engines are copied; the result names them."""
    monkeypatch.setattr(staging, "hard_link", lambda *_: False)
    done = released(built)
    assert ENGINE.format(1) in done.copied
    assert not any(file.linked for file in done.stored.manifest().files)
    assert verify(done.stored, Silent()) == []


def test_a_full_disk_leaves_nothing(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """HostError with a remedy, no release, no staging."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging, "describe_files", full)
    with pytest.raises(HostError, match="no space left"):
        released(built)
    assert [p.name for p in (built.root / "releases").iterdir()] == [".lock"]


def test_secrets_stay_out(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of a field, by the form of a token, by the environment's variables."""
    monkeypatch.setenv("MY_API_KEY", "zebra-crossing-42")
    record = {
        "api_key": "short",
        "endpoint": "http://user:pass@host/v1",
        "list": ["zebra-crossing-42", "hf_abcdefghijklmnopqrstuvwxyz012345"],
        "checkpoint": "checkpoint",
        "max_tokens": 5,
    }
    clean = without_secrets(record)
    text = json.dumps(clean)
    for secret in ("short", "pass@", "zebra", "hf_abc"):
        assert secret not in text
    assert (clean["checkpoint"], clean["max_tokens"]) == ("checkpoint", 5)
    built.serving["config"] = {
        "engine": {"parameters": {"note": {"string_value": "zebra-crossing-42"}}}
    }
    release = released(built).stored.manifest()
    assert "zebra" not in json.dumps(release.project)


def test_what_the_manifest_says(releases: list[StoredRelease]) -> None:
    """Engine, versions, settings; the whole of it survives being written and read."""
    stored = releases[0]
    release = read_release(stored.folder)
    assert release == stored.record
    assert release.engines["speller"].builder == "scripted"
    assert set(release.versions) == {"tritonctl", "python", "triton"}
    assert release.project["models"]["speller"]["engine"]["max_batch_size"] == 4
    config = parse_pbtxt((stored.repository / "speller/config.pbtxt").read_text(encoding="utf-8"))
    steps = config["ensemble_scheduling"]["step"]
    assert {int(step["model_version"]) for step in steps} == {-1}


def test_the_command(built: Sandbox, cli: Cli) -> None:
    """Publishes once, says what was not asked, lists, shows and verifies."""
    built.load()
    cli = type(cli)(built.root)
    done = cli("releases", "publish", "--no-smoke", "--json")
    record = json.loads(done.stdout)
    assert (record["published"], record["number"], record["smoke"]["status"]) == (
        True,
        1,
        "not run",
    )
    assert "not smoke-tested: --no-smoke" in done.stderr
    assert (
        json.loads(cli("releases", "publish", "--no-smoke", "--json").stdout)["published"] is False
    )
    [listed] = json.loads(cli("releases", "list", "--json").stdout)["releases"]
    assert (listed["release"], listed["live"]) == (record["release"], False)
    shown = as_documented("releases show", cli("releases", "show", "1", "--json").stdout)
    assert shown["schema"] == "tritonctl.release/1"
    assert "not run: --no-smoke" in cli("releases", "show", "latest").stdout
    assert cli("releases", "verify").returncode == 0
    code = built.root / "releases" / record["release"] / "repository/speller_engine/1/model.py"
    code.chmod(0o644)
    broken = cli("releases", "verify", "1", "--json")
    assert broken.returncode == 6
    assert json.loads(broken.stdout)["releases"][record["release"]][0]["kind"] == "mode"

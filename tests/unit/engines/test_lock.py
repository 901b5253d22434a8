# SPDX-License-Identifier: Apache-2.0
"""tritonctl.lock: written by a build, and what --locked refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tritonctl.engines.builds.engine import Artefact
from tritonctl.engines.builds.lock import read_lock, refuse_drift, refuse_other_tools, update_lock
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.errors import BuildFailedError, ConfigurationError

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

BUILDER = "builders/scripted/build.py"


def lock(sandbox: Sandbox) -> dict[str, Any]:
    text = (sandbox.root / "tritonctl.lock").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def append(file: str) -> Callable[[Sandbox], None]:
    def change(sandbox: Sandbox) -> None:
        with (sandbox.root / file).open("a", encoding="utf-8") as stream:
            stream.write("\n")

    return change


def larger(sandbox: Sandbox) -> None:
    sandbox.engine["max_batch_size"] = 9
    sandbox.write()


def more_models(sandbox: Sandbox) -> None:
    sandbox.data["models"]["other"] = sandbox.model()
    sandbox.write()


def test_a_build_writes_the_lock(sandbox: Sandbox, cli: Cli) -> None:
    """Digests of every input, settings, versions; the same again changes no byte."""
    assert cli("build").returncode == 0
    record = lock(sandbox)
    entry = record["profiles"][""]["speller"]
    assert set(entry["stages"]["build"]["inputs"]) == {"checkpoint", "builder.scripted"}
    assert entry["stages"]["build"]["settings"]["precision"] == "int8"
    assert set(entry["versions"]) == {"python"}
    written = (sandbox.root / "tritonctl.lock").stat().st_mtime_ns
    assert cli("build").returncode == 0
    assert (sandbox.root / "tritonctl.lock").stat().st_mtime_ns == written


def test_locked_builds_what_the_lock_says(sandbox: Sandbox, cli: Cli) -> None:
    """On another machine: the engine is not there, the inputs are the same."""
    assert cli("build").returncode == 0
    before = lock(sandbox)
    done = cli("build", "--locked", "--force")
    assert done.returncode == 0, done.stderr
    assert lock(sandbox) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (append("checkpoint/config.json"), "build.inputs.checkpoint:"),
        (append(BUILDER), "build.inputs.builder.scripted:"),
        (larger, "build.settings.limits.max_batch_size: 4 became 9"),
        (more_models, "has no entry for model other"),
    ],
)
def test_drift_is_refused(
    sandbox: Sandbox, cli: Cli, change: Callable[[Sandbox], None], words: str
) -> None:
    """Exit code 3, what differs is named, nothing is built, the lock stays."""
    assert cli("build").returncode == 0
    before = lock(sandbox)
    change(sandbox)
    done = cli("build", "--locked")
    assert done.returncode == 3
    assert words in " ".join(done.stderr.split())
    assert sandbox.run_count() == 1
    assert lock(sandbox) == before
    assert cli("build").returncode == 0
    assert cli("build", "--locked").returncode == 0


def test_other_tools_are_refused(sandbox: Sandbox, cli: Cli) -> None:
    """The inputs are the same, the environment is not: exit code 5."""
    assert cli("build").returncode == 0
    record = lock(sandbox)
    record["profiles"][""]["speller"]["versions"]["python"] = "2.7.18"
    (sandbox.root / "tritonctl.lock").write_text(json.dumps(record), encoding="utf-8")
    done = cli("build", "--locked")
    assert done.returncode == 5
    assert "python: 2.7.18 became" in done.stderr


def test_without_a_lock(sandbox: Sandbox, cli: Cli) -> None:
    """--locked refuses, a build writes one."""
    sandbox.write()
    done = cli("build", "--locked")
    assert done.returncode == 3
    assert "tritonctl build" in done.stderr
    assert cli("build").returncode == 0
    assert lock(sandbox)["schema"] == "tritonctl.lock/1"
    assert cli("build", "--locked").returncode == 0


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": "other/1"}'])
@pytest.mark.parametrize("flags", [(), ("--locked",)], ids=["build", "locked"])
def test_a_damaged_lock(sandbox: Sandbox, cli: Cli, damage: str, flags: tuple[str, ...]) -> None:
    """Other profiles' entries are in it: nothing is built, nothing overwritten."""
    (sandbox.root / "tritonctl.lock").write_text(damage, encoding="utf-8")
    sandbox.write()
    done = cli("build", *flags)
    assert done.returncode == 3
    assert "git checkout tritonctl.lock" in done.stderr
    assert (sandbox.root / "tritonctl.lock").read_text(encoding="utf-8") == damage
    assert not (sandbox.root / ".tritonctl" / "engines").exists()


def engine(**versions: str) -> Artefact:
    """One that was made with these tools."""
    result = SimpleNamespace(versions=versions)
    return cast("Artefact", SimpleNamespace(manifest=SimpleNamespace(result=result)))


def test_what_others_wrote_stays(sandbox: Sandbox) -> None:
    """A build knows of one model of one profile; the lock of all."""
    sandbox.data["models"]["other"] = sandbox.model()
    project = sandbox.load()
    for profile, name, version in ((None, "speller", "1"), ("edge", "speller", "2")):
        update_lock(project, profile, name, plan_stages(project, name), engine(tool=version))
    update_lock(project, None, "other", plan_stages(project, "other"), engine(tool="3"))
    update_lock(project, None, "speller", plan_stages(project, "speller"), engine(tool="4"))
    profiles = read_lock(project)
    assert {
        (profile, name): entry["versions"]
        for profile, models in profiles.items()
        for name, entry in models.items()
    } == {
        ("", "speller"): {"tool": "4"},
        ("edge", "speller"): {"tool": "2"},
        ("", "other"): {"tool": "3"},
    }


def test_a_lock_that_stays_is_not_written(sandbox: Sandbox) -> None:
    """Nobody sees a change where there is none; one that differs in a space is put right."""
    project = sandbox.load()
    stages = plan_stages(project, "speller")
    update_lock(project, None, "speller", stages, engine(tool="1"))
    file = sandbox.root / "tritonctl.lock"
    before, text = file.stat().st_ino, file.read_text(encoding="utf-8")
    update_lock(project, None, "speller", stages, engine(tool="1"))
    assert file.stat().st_ino == before
    file.write_text(f"{text} ", encoding="utf-8")
    update_lock(project, None, "speller", stages, engine(tool="1"))
    assert file.read_text(encoding="utf-8") == text


def test_what_differs_is_named_from_both_sides(sandbox: Sandbox) -> None:
    """What is new, what is gone, what is another; long values are cut."""
    project = sandbox.load()
    long = "f" * 64
    stages = plan_stages(project, "speller")
    locked = engine(gone="1", same="2", other=long, twenty="x" * 20)
    update_lock(project, None, "speller", stages, locked)
    now = engine(new="3", same="2", other="4", twenty="y")
    with pytest.raises(BuildFailedError) as caught:
        refuse_other_tools(project, None, "speller", now)
    assert caught.value.problem.endswith(
        f"gone: 1 became nothing; new: nothing became 3; other: {'f' * 12}… became 4; "
        f"twenty: {'x' * 20} became y"
    )
    with pytest.raises(ConfigurationError, match="has no entry for model speller of profile edge"):
        refuse_drift(project, "edge", "speller", stages)
    refuse_drift(project, None, "speller", stages)


@pytest.mark.parametrize("schema", ["tritonctl.lock/2", None])
def test_a_lock_of_another_version(sandbox: Sandbox, schema: str | None) -> None:
    """It may mean something else by the same names."""
    record: dict[str, Any] = {"schema": schema, "profiles": {}}
    (sandbox.root / "tritonctl.lock").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"is not a tritonctl\.lock/1"):
        read_lock(sandbox.load())

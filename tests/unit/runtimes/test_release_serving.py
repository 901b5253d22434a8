# SPDX-License-Identifier: Apache-2.0
"""Serving releases, as far as no server is needed: which one, by what link, what is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.json_page import as_documented
from tests.unit.releases.releasing import released_once, releases, uncompiled
from tests.unit.runtimes.test_reloading import embedded_server
from tritonctl.errors import ServerError, UsageError
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Silent
from tritonctl.releases.serving import rendered_release
from tritonctl.releases.store import LINK, StoredRelease, point_link
from tritonctl.runtimes import release_switch
from tritonctl.runtimes.docker.compose import render_compose
from tritonctl.runtimes.release_switch import rollback, rollback_target, serve_release
from tritonctl.runtimes.reload import reload
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles, read_state, write_state

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

__all__ = ["released_once", "releases", "uncompiled"]  # fixtures


def _serve(built: Sandbox, release: str, **more: Any) -> EmbeddedServer:
    """A server that is this process, as `up` recorded it."""
    files = ServerFiles.of(built.load())
    started = process_start_time(os.getpid()) or 0
    state = replace(embedded_server(os.getpid(), started, (1, 2, 3), []), release=release, **more)
    write_state(files, state)
    return state


def test_the_release_before(built: Sandbox, releases: list[StoredRelease]) -> None:
    """The older one that was served, else the parent, as far as they are kept."""
    first, second = (one.name for one in releases)
    assert rollback_target(_serve(built, second), releases) == first
    assert (
        rollback_target(_serve(built, second, previous_release="1-000000000000"), releases) == first
    )
    assert rollback_target(_serve(built, first, previous_release=second), releases) == second
    assert rollback_target(_serve(built, first), releases) is None
    assert rollback_target(_serve(built, "9-ffffffffffff"), releases) is None


def test_what_cannot_be_rolled_back(built: Sandbox, releases: list[StoredRelease]) -> None:
    """No server, no release, the one that is served, none before it: each with what to do."""
    project = built.load()
    with pytest.raises(ServerError, match="no server is running"):
        rollback(project, None, Silent())
    _serve(built, "")
    with pytest.raises(ServerError, match="not a release") as caught:
        rollback(project, None, Silent())
    assert "tritonctl up --release N" in caught.value.remedy
    _serve(built, releases[0].name)
    with pytest.raises(UsageError, match="no release older than"):
        rollback(project, None, Silent())
    with pytest.raises(UsageError, match="is already live"):
        rollback(project, "1", Silent())


def test_a_release_is_not_reloaded(built: Sandbox, releases: list[StoredRelease]) -> None:
    """It never changes: what was built since is another one."""
    _serve(built, releases[1].name)
    with pytest.raises(ServerError, match="never change") as caught:
        reload(built.load(), "speller", Silent())
    assert "tritonctl releases publish" in caught.value.remedy


class Played:
    """In the place of a server that takes releases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: str = "") -> None:
        self.done: list[str] = []
        self.fails = fails
        monkeypatch.setattr(release_switch, "refuse_other_server", lambda *_: None)
        monkeypatch.setattr(release_switch, "ModelControl", self.control)
        monkeypatch.setattr(release_switch, "ModelSwap", self.swap)

    def control(self, *_: Any) -> Any:
        from contextlib import contextmanager

        class Control:
            def __enter__(self) -> Control:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            @contextmanager
            def timing_gaps(self, _: str) -> Any:
                yield [0.5]

        return Control()

    def swap(self, project: Any, name: str, plan: Any, *rest: Any) -> Any:
        publish, played = rest[-1], self

        class Swap:
            unreleased = ("x",)

            def run(self, *, smoke_test: bool) -> tuple[None, list[str], int]:
                order = "asked" if smoke_test else "again"
                played.done.append(f"{name} {plan.release.name[0]} {order}")
                assert project.repository.parent.name == plan.release.name
                if played.fails == "loading" and smoke_test:
                    raise ServerError("does not load", remedy="look")
                publish()
                if played.fails == "late" and smoke_test:
                    raise ServerError("fails late", remedy="look")
                return None, [], 1

        return Swap()


def _link(built: Sandbox) -> str:
    return (built.root / "releases" / LINK).readlink().name


def test_a_switch_in_place(
    built: Sandbox, releases: list[StoredRelease], monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Forwards remembers where from; back forgets the newer one."""
    played = Played(monkeypatch)
    _serve(built, releases[0].name)
    files = ServerFiles.of(built.load())
    _, started, done = serve_release(built.load(), "latest", Silent())
    assert done is not None
    assert (started, done.restarted, done.abandoned, done.retained_models) == (
        False,
        None,
        1,
        ("x",),
    )
    assert done.gap_seconds == 0.5
    state = read_state(files)
    assert state is not None
    names = (state.release, state.previous_release, state.switching_to)
    assert names == (releases[1].name, releases[0].name, "")
    assert _link(built) == releases[1].name
    told = as_documented(
        "releases rollback", type(cli)(built.root)("releases", "rollback", "--json").stdout
    )
    assert (told["release"], told["previous"]) == (releases[0].name, releases[1].name)
    state = read_state(files)
    assert state is not None
    assert (state.release, state.previous_release) == (releases[0].name, "")
    assert played.done == ["speller 2 asked", "speller 1 asked"]
    assert f"serves release {releases[0].name} now" in files.log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("fails", "done"),
    [("loading", ["speller 2 asked"]), ("late", ["speller 2 asked", "speller 1 again"])],
)
def test_a_switch_that_fails_leads_back(
    built: Sandbox,
    releases: list[StoredRelease],
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
    done: list[str],
) -> None:
    """Nothing is undone where nothing was done; state and link name the old release."""
    played = Played(monkeypatch, fails=fails)
    _serve(built, releases[0].name)
    point_link(built.root / "releases" / LINK, releases[0].folder)
    with pytest.raises(ServerError, match=f"release {releases[0].name} stays deployed"):
        serve_release(built.load(), "2", Silent())
    state = read_state(ServerFiles.of(built.load()))
    assert state is not None
    assert (state.release, state.switching_to, _link(built)) == (
        releases[0].name,
        "",
        releases[0].name,
    )
    assert played.done == done


def test_after_a_killed_switch_either_release_is_taken(
    built: Sandbox, releases: list[StoredRelease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of both may be served: also the one that the state names is loaded again."""
    played = Played(monkeypatch)
    first, second = (one.name for one in releases)
    _serve(built, first, switching_to=second)
    rollback(built.load(), "1", Silent())
    assert played.done == ["speller 1 asked"]
    state = read_state(ServerFiles.of(built.load()))
    assert state is not None
    assert (state.release, state.switching_to) == (first, "")


def test_containers_mount_all_releases(built: Sandbox, releases: list[StoredRelease]) -> None:
    """The link leads from one to another while they run; without it, one release is mounted."""
    link = built.root / "releases" / LINK
    for given, source, repository in (
        (link, "../releases", f"/models/{LINK}/repository"),
        (None, f"../releases/{releases[0].name}/repository", "/models"),
    ):
        project, rendered = rendered_release(built.load(), releases[0], given)
        files = render_compose(project, rendered.plan, built.root / "deploy").files
        service = yaml.safe_load(files["compose.yaml"])["services"]["triton"]
        assert service["volumes"][0]["source"] == source
        assert f"--model-repository={repository}" in service["command"]


def test_the_link_moves_in_one_step(tmp_path: Path) -> None:
    """It is relative, so that it holds in a container, too."""
    for name in ("1-aaaaaaaaaaaa", "2-bbbbbbbbbbbb"):
        (tmp_path / name).mkdir()
        point_link(tmp_path / LINK, tmp_path / name)
        assert str((tmp_path / LINK).readlink()) == name
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == LINK


def test_the_commands(built: Sandbox, releases: list[StoredRelease], cli: Cli) -> None:
    """Choices that exclude each other, an unknown release, a deployment of one."""
    cli = type(cli)(built.root)
    for verb in (("up",), ("deploy", "compose")):
        done = cli(*verb, "--release", "1", "--models", "speller", "--json")
        assert (done.returncode, json.loads(done.stdout)["error"]) == (2, "UsageError")
    unknown = cli("up", "--release", "7")
    assert (unknown.returncode, "no release `7`" in unknown.stderr) == (2, True)
    assert cli("releases", "rollback").returncode == 7
    assert cli("deploy", "compose", "--release", "1").returncode == 0
    text = (built.root / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    assert f"../releases/{releases[0].name}/repository" in text

# SPDX-License-Identifier: Apache-2.0
"""Rollouts by real servers, a real Envoy and a controller in its own process, while users ask.

The engine replays one token, each release another: an answer tells who gave it. The third fails.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests import sample_tokenizers
from tests.conftest import Cli
from tests.server.replay import replay_project
from tests.server.test_groups import HEADER, Users, traffic
from tests.server.test_reload import MODEL, NEW, OLD, write_version
from tests.servers import wait_until
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import HostError, RepositoryError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.releases.publish import publish
from tritonctl.releases.store import stored_releases
from tritonctl.rollout.journal import JournalEvent, RolloutPhase, open_journal
from tritonctl.rollout.operator_commands import OperatorCommand
from tritonctl.rollout.platforms import platform_of
from tritonctl.rollout.starting import start
from tritonctl.rollout.status import RolloutStatus, rollout_status, rollouts_folder
from tritonctl.rollout.steering import ProjectSource, send_command
from tritonctl.runtimes import slot_servers
from tritonctl.runtimes.lifecycle import running_server, stop
from tritonctl.runtimes.release_switch import serve_release
from tritonctl.runtimes.slot_servers import Slot
from tritonctl.runtimes.staging_server import skip_smoke_test

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

PATIENCE = 180.0
SETTINGS = {
    "user_header": HEADER,
    "steps": [25, 60, 100],
    "hold_seconds": 4,
    "minimum_requests": 5,
    "warm_up_seconds": 2,
    "keep_warm_seconds": 8,
    # Busy machines have long slow phases of one version alone; here, failures decide.
    "tolerated": {"slowness": 0.49, "memory_growth": 10},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Three releases, and users who have names."""
    tokenizer = sample_tokenizers.byte_level(tmp_path_factory.mktemp("tokenizer"))
    folder = tmp_path_factory.mktemp("rollout") / "project"
    replay_project(folder, {MODEL: (tokenizer, [])})
    file = folder / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    data |= {"rollout": SETTINGS, "gateway": {"port": 0, "admin_port": 0}}
    data["server"]["restart"] = True
    file.write_text(json.dumps(data), encoding="utf-8")
    project = load_project(file)
    for letter in (OLD, NEW, None):
        if letter is not None:
            write_version(project.root, letter, for_all=True)
        else:
            failing = [{"ids": [70], "error": "wrong weights"}]
            (folder / MODEL / "scripts.json").write_text(json.dumps(failing), encoding="utf-8")
        build_engine(project, MODEL, Silent())
        publish(project, Silent(), partial(skip_smoke_test, reason="the test asks"))
    yield project
    _end_controllers(project)
    stop(project, Silent())


@pytest.fixture
def served(project: Project) -> Project:
    """The first release, in slot a, alone, behind Envoy; no rollout."""
    _end_controllers(project)
    shutil.rmtree(rollouts_folder(project), ignore_errors=True)
    stop(project, Silent())
    (project.state / "stable").unlink(missing_ok=True)
    serve_release(project, "1", Silent())
    return project


def _taken_back(project: Project, under_way: RolloutStatus) -> None:
    """As `rollout abort` does it first."""
    platform_of(project, under_way.state.details).take_back()


def _source(project: Project) -> ProjectSource:
    return ProjectSource(project.root, None, ())


def _started(project: Project, release: str) -> RolloutStatus:
    return start(project, _source(project), release, Silent(), breaking=False)


def _when(project: Project, condition: Callable[[RolloutStatus], object]) -> RolloutStatus:
    """The last rollout, once that is true of it."""
    deadline = time.monotonic() + PATIENCE
    while not condition(found := rollout_status(project)):
        assert time.monotonic() < deadline, [*found.entries[-3:]]
        time.sleep(0.1)
    return found


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
        return int(file.read().rsplit(")", 1)[1].split()[1])


def _controller(project: Project) -> int:
    found = _when(project, lambda one: one.controller)
    return int(found.controller or 0)


def _kill_both(project: Project) -> None:
    """The controller and its parent, who would start it again."""
    pid = _controller(project)
    for each in (_parent(pid), pid):
        if each != 1:
            os.kill(each, signal.SIGKILL)
    wait_until(lambda: rollout_status(project).needs_controller, "the controller is gone")


def _end_controllers(project: Project) -> None:
    folder = rollouts_folder(project)
    if any(folder.glob("*/journal.jsonl")) and rollout_status(project).controller:
        _kill_both(project)


def test_a_good_release_is_promoted(served: Project) -> None:
    """To all users, step by step; nobody notices, and the old one is unloaded in the end."""
    users = Users(served)
    with users.asking():
        begun = _started(served, "2")
        assert begun.controller is not None
        with (
            pytest.raises(HostError, match="another controller"),
            open_journal(begun.folder.parent, 9),
        ):
            pass
        done = _when(served, lambda one: one.state.closed)
        assert {*users.next_answers().values()} == {NEW}
    assert users.errors == {}
    assert done.state.phase is RolloutPhase.PROMOTED, done.state.reason
    moved = [entry.details for entry in done.entries if entry.event is JournalEvent.MOVED]
    assert [each["confirmed"] for each in moved] == [True] * 4
    assert running_server(served).release == stored_releases(served)[1].name
    assert slot_servers.server_in_slot(served, Slot.A) is None


def test_a_bad_release_is_taken_back(served: Project) -> None:
    """Within 30 s of the first bad request nobody has it, and it is unloaded."""
    users = Users(served)
    with users.asking():
        _started(served, "3")
        wait_until(lambda: users.errors, "a user has met it")
        began = time.monotonic()
        done = _when(served, lambda one: one.state.closed)
        seconds = time.monotonic() - began
        exposed = sum(users.errors.values())
        assert {*users.next_answers().values()} == {OLD}
        assert sum(users.errors.values()) - exposed <= len(users.answers)
    assert seconds < 30
    assert done.state.phase is RolloutPhase.ROLLED_BACK
    assert "its requests fail" in done.state.reason
    assert slot_servers.server_in_slot(served, Slot.B) is None
    assert running_server(served).release == stored_releases(served)[0].name


def test_the_controller_is_killed(served: Project) -> None:
    """Alone, it comes back and goes on; with its parent, a verb takes users back."""
    users = Users(served)
    with users.asking():
        _started(served, "2")
        _when(served, lambda one: one.state.step is not None and one.state.moved)
        first = _controller(served)
        os.kill(first, signal.SIGKILL)
        _when(served, lambda one: one.controller not in (None, str(first)))
        _kill_both(served)
        share = traffic(served).share()
        assert share > 0
        send_command(served, _source(served), OperatorCommand.RESUME, partial(_taken_back, served))
        _when(served, lambda one: one.controller is not None)
        assert traffic(served).share() >= share
        _kill_both(served)
        found = send_command(
            served, _source(served), OperatorCommand.ABORT, partial(_taken_back, served)
        )
        assert users.all_get(OLD)
        assert found.state.phase is RolloutPhase.ROLLED_BACK
        _when(served, lambda one: one.state.closed)
    assert users.errors == {}
    assert [entry.event for entry in found.entries].count(JournalEvent.STARTED) == 1


def test_nobody_has_a_name(served: Project) -> None:
    """Requests come without the header: an error says so, and nobody is moved."""
    users = Users(served, named=False)
    with users.asking():
        _started(served, "2")
        told = _when(served, lambda one: "none with the header" in one.reason)
        assert told.state.step is None
        send_command(
            served, _source(served), OperatorCommand.ABORT_AT_ONCE, partial(_taken_back, served)
        )
    assert users.errors == {}


def test_a_release_that_was_changed(served: Project) -> None:
    """Refused before anything is loaded: no rollout begins."""
    before = sorted(rollouts_folder(served).glob("*/journal.jsonl"))
    stored = stored_releases(served)[1]
    file = next(path for path in stored.repository.rglob("scripts.json"))
    content = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(b"[]")
    try:
        with pytest.raises(RepositoryError, match="not as it was published"):
            _started(served, "2")
    finally:
        file.write_bytes(content)
        file.chmod(0o444)
    assert sorted(rollouts_folder(served).glob("*/journal.jsonl")) == before


def test_releases_compared_by_their_numbers(project: Project, cli: Cli) -> None:
    """Neither is served: each has a server of its own, and none is left."""
    stop(project, Silent())
    prompts = project.root / "asked.txt"
    prompts.write_text("one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n", encoding="utf-8")
    done = cli("rollout", "compare", "1", "2", "--prompts", prompts, "--json", cwd=project.root)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["a"], told["b"], told["questions"]) == ("1", "2", 8)
    assert (told["noise"]["count"], told["different"]["count"]) == (0, 8)
    assert not [*project.state.glob("beside-*")]

# SPDX-License-Identifier: Apache-2.0
"""The controller's parent: starts it again, gives it up, and takes the users back at last."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.rollout_world import LOADED, STARTED
from tritonctl.errors import HostError
from tritonctl.gateway.placement import gateway_of
from tritonctl.gateway.shares import ROLLBACK_ROUTES, ROUTES, TrafficSplit, read_split
from tritonctl.releases.slots import Slot
from tritonctl.rollout import control, supervise
from tritonctl.rollout.control import TAKE_BACK
from tritonctl.rollout.journal import JOURNAL, open_journal
from tritonctl.rollout.steering import ProjectSource, launch_controller
from tritonctl.rollout.traffic import Traffic
from tritonctl.runtimes import slot_servers
from tritonctl.supervision import restarts
from tritonctl.supervision.exec_launcher import STOP_SIGNALS

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

# A controller that notes that it ran, then ends as its argument says: a status, or -9.
RAN = """
import os, pathlib, sys
runs = pathlib.Path("runs")
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
how = int(sys.argv[1])
if how < 0:
    os.kill(os.getpid(), -how)
sys.exit(how)
"""


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A specification whose controller dies at once; what gives up writes a file."""
    monkeypatch.setattr(restarts, "RESTART_DELAYS", (0.0,) * len(restarts.RESTART_DELAYS))
    program = [sys.executable, "-S", "-c"]
    held = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    yield {
        "argv": [*program, RAN, "-9"],
        "given_up": [*program, "open('back', 'w')"],
        "folder": str(tmp_path),
        "log": str(tmp_path / "log"),
        "restarts_file": str(tmp_path / "restarts.json"),
    }
    signal.pthread_sigmask(signal.SIG_SETMASK, held)


def test_a_controller_that_dies_again_and_again(supervised: dict[str, Any], tmp_path: Path) -> None:
    """Six times; then the users are taken back, once, and the log says why."""
    supervise._run(supervised)
    assert (tmp_path / "runs").read_text() == "xxxxxx"
    assert (tmp_path / "back").exists()
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "tritonctl: the controller died: signal 9 (SIGKILL); again in 0 s"
    assert lines[-1] == "tritonctl: the controller died 6 times: users are taken back"


@pytest.mark.parametrize("status", [supervise.DONE, supervise.SUPERFLUOUS])
def test_a_controller_that_is_done(supervised: dict[str, Any], tmp_path: Path, status: int) -> None:
    """It, or another one that runs, has the users: nothing is taken back."""
    supervise._run(supervised | {"argv": [*supervised["argv"][:-1], str(status)]})
    assert (tmp_path / "runs").read_text() == "x"
    assert not (tmp_path / "back").exists()


@pytest.fixture
def half(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A candidate with half of the users: the specification that was launched, and the routes."""
    sandbox.data["rollout"] = {"user_header": "x-user-id"}
    sandbox.write()
    project = sandbox.load()
    folder = slot_servers.routes_folder(project)
    folder.mkdir(parents=True)
    place = slot_servers.gateway_placement(project)
    Traffic(folder, gateway_of(project), place, project.rollout).move(50)
    rollouts = project.state / "rollouts"
    with open_journal(rollouts, 1) as (journal, _):
        for entry in (STARTED, LOADED):
            journal.add(entry)
    monkeypatch.setattr("tritonctl.rollout.steering.subprocess.run", lambda *_, **__: None)
    launch_controller(project, ProjectSource(sandbox.root, None, ()), rollouts / "1")
    return rollouts / "1" / "controller.json", folder / ROUTES


@pytest.mark.parametrize("damage", ["nothing", "project", "journal", "all"])
def test_the_last_resort(half: tuple[Path, Path], sandbox: Sandbox, damage: str) -> None:
    """Stable has all users again, also where a damaged file is what the controller died of."""
    specification, routes = half
    assert read_split(routes) == TrafficSplit(Slot.A, 50)
    if damage == "project":
        sandbox.file.write_text("models: [", encoding="utf-8")
    if damage == "all":
        sandbox.file.unlink()
    if damage in ("journal", "all"):
        (specification.parent / JOURNAL).write_text("no line of ours\n", encoding="utf-8")
    asked = json.loads(specification.read_text(encoding="utf-8"))["given_up"]
    assert asked[-2:] == [str(specification), TAKE_BACK]
    assert control.main(asked[-2:]) == supervise.DONE
    assert read_split(routes) == TrafficSplit(Slot.A, 0)


def test_no_way_back(half: tuple[Path, Path], sandbox: Sandbox) -> None:
    """Neither a project nor prepared routes: it is said, with the file."""
    specification, routes = half
    sandbox.file.unlink()
    (routes.parent / ROLLBACK_ROUTES).unlink()
    with pytest.raises(HostError, match=ROLLBACK_ROUTES):
        control.main([str(specification), TAKE_BACK])

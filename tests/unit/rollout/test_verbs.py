# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout`: what each verb asks, refuses and shows; the controller runs in a thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.rollout_world import LOADED, STARTED, Killed, Service, world_of
from tests.json_page import as_documented
from tritonctl.errors import ConfigurationError, RepositoryError, ServerError
from tritonctl.releases.slots import Slot
from tritonctl.releases.store import StoredRelease
from tritonctl.rollout.controller import Controller
from tritonctl.rollout.journal import JournalEntry, JournalEvent, open_journal, read_journal
from tritonctl.rollout.metrics import Counters, Histogram

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox


class Host:
    """The verbs' project with fake servers and gateway; `launch` starts a real controller."""

    def __init__(self, root: Path) -> None:
        self.rollouts = root / ".tritonctl" / "rollouts"
        self.service = Service()
        self.loads: list[str] = []
        self.failure: Exception | None = None
        self.counted: dict[str, Counters] = {}  # by slot
        self.over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start_candidate(self, _: object, stored: Any, __: object, *, breaking: bool) -> None:
        """Groups'."""
        if self.failure is not None:
            raise self.failure
        self.loads.append(f"{stored.name}{' breaking' if breaking else ''}")
        self.service.loaded.add("b")

    def launch(self, _: object, __: object, folder: Path) -> None:
        """Steering's."""
        thread = threading.Thread(target=self._control, args=[folder])
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Every controller is killed."""
        self.over.set()
        for thread in self._threads:
            thread.join()
        self.over.clear()

    def _control(self, folder: Path) -> None:
        def sleep(_: float) -> None:
            self.service.second()
            if self.over.wait(0.01):
                raise Killed

        with suppress(Killed), open_journal(folder.parent, int(folder.name)) as (journal, entries):
            Controller(journal, entries, folder, world_of(self.service, sleep)).run()


@pytest.fixture
def host(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Release 1-aaaa serves, 2-bbbb is published; a step lasts for ever."""
    sandbox.data["rollout"] = {"user_header": "x-user-id", "hold_seconds": 1e6}
    sandbox.write()
    host = Host(sandbox.root)
    stored = [StoredRelease(Path(name), None) for name in ("1-aaaa", "2-bbbb")]
    for name, value in (
        ("starting.stored_releases", lambda _: stored),
        ("status.stored_releases", lambda _: stored),
        ("host_environment.running_server", lambda _: SimpleNamespace(release="1-aaaa")),
        ("host_environment.slot_servers.stable_slot", lambda _: Slot(host.service.stable)),
        ("host_environment.slot_servers.start_candidate", host.start_candidate),
        (
            "host_environment.slot_servers.stop_slot",
            lambda *_, **__: host.service.loaded.discard("b"),
        ),
        ("host_environment.HostPlatform.counters", lambda _, slot: host.counted.get(slot.value)),
        ("starting.launch_controller", host.launch),
        ("steering.launch_controller", host.launch),
        ("host_environment.HostPlatform.take_back", lambda *_: host.service.roll_back()),
    ):
        monkeypatch.setattr(f"tritonctl.rollout.{name}", value)
    yield host
    host.end()


def test_all_verbs(host: Host, cli: Cli, tmp_path: Path) -> None:
    """From the start to an abort of what was promoted; each prints what the page shows."""
    told = as_documented("rollout start", cli("rollout", "start", "2", "--json").stdout)
    assert (told["rollout"], told["release"], told["stable"]) == (1, "2-bbbb", "1-aaaa")
    assert told["controller"] is not None
    refused = cli("rollout", "start", "2", "--json")
    assert refused.returncode == 2
    assert "rollout 1 of release 2-bbbb is under way" in json.loads(refused.stdout)["problem"]
    for verb in (("up", "--release", "2"), ("releases", "rollback")):
        refused = cli(*verb)
        assert refused.returncode == 2
        assert "rollout 1 of release 2-bbbb is under way and compared with 1-aaaa" in refused.stderr
    while not host.service.acts:
        time.sleep(0.01)
    told = as_documented("rollout pause", cli("rollout", "pause", "--json").stdout)
    assert (told["phase"], told["share_percent"]) == ("holding", 1.0)
    assert "  not tested: different answers, memory\n" in cli("rollout", "status").stdout
    told = as_documented("rollout resume", cli("rollout", "resume", "--json").stdout)
    assert told["phase"] == "stepping"
    refused = cli("rollout", "resume")
    assert refused.returncode == 2
    assert "rollout 1 is not paused" in refused.stderr
    told = as_documented("rollout promote", cli("rollout", "promote", "--json").stdout)
    assert (told["phase"], told["share_percent"]) == ("promoted", 100.0)
    assert host.service.stable == "b"
    assert cli("rollout", "promote").returncode == 2
    told = as_documented("rollout abort", cli("rollout", "abort", "--at-once", "--json").stdout)
    assert (told["phase"], told["closed"]) == ("rolled_back", True)
    assert (host.service.stable, host.service.loaded) == ("a", {"a"})
    page = tmp_path / "rollout.html"
    told = as_documented("rollout status", cli("rollout", "status", "--json", "-o", page).stdout)
    assert told["report"] == str(page)
    assert "by hand" in page.read_text()
    watched = cli("rollout", "watch", "--json")
    assert watched.returncode == 8
    first, second = watched.stdout.splitlines()
    as_documented("rollout watch", first)
    assert json.loads(second)["error"] == "RolledBackError"


def test_a_dead_controller(host: Host, cli: Cli) -> None:
    """The next verb says so; resume goes on, an abort moves users before anybody answers."""
    cli("rollout", "start", "latest", "--breaking")
    assert host.loads == ["2-bbbb breaking"]
    while not host.service.acts:
        time.sleep(0.01)
    host.end()
    watched = cli("rollout", "watch")
    assert watched.returncode == 7
    assert "the controller is gone: `tritonctl rollout resume` continues" in watched.stdout
    assert max(map(len, watched.stdout.splitlines())) <= 80
    assert cli("rollout", "start", "2").returncode == 2
    assert "process" in cli("rollout", "resume").stdout
    host.end()
    aborted = cli("rollout", "abort")
    assert aborted.returncode == 0, aborted.stderr
    assert host.service.acts == ["move 1", "roll back", "roll back"]
    # The candidate is warm: the next start makes room for another one first.
    assert host.service.loaded == {"a", "b"}
    cli("rollout", "start", "2")
    assert host.service.acts[3] == "stop b"
    assert [path.name for path in sorted(host.rollouts.glob("[0-9]*"))] == ["1", "2"]


@pytest.mark.parametrize(
    ("failure", "code", "left"),
    [
        (RepositoryError("its SHA-256 is another", remedy="publish again"), 6, []),
        (ServerError("out of memory", remedy="smaller batches"), 7, ["rolled_back", "closed"]),
        (KeyboardInterrupt(), 130, ["rolled_back", "closed"]),
    ],
)
def test_what_is_not_loaded(
    host: Host, cli: Cli, failure: Exception, code: int, left: list[str]
) -> None:
    """Refused: no rollout. Tried in vain: one that is over."""
    host.failure = failure
    assert cli("rollout", "start", "2").returncode == code
    events = [entry.event.value for entry in read_journal(host.rollouts / "1")]
    assert [event for event in events if event in left] == left
    assert bool(events) == bool(left)
    assert host.service.acts == []
    host.failure = None
    assert cli("rollout", "start", "2").returncode == 0


def test_what_servers_count_is_judged(host: Host, cli: Cli) -> None:
    """Times of stable's, which have had requests; memory where both slots' tell it."""
    times = {"ttft": Histogram((1.0,), (3, 0))}
    host.counted = {"a": Counters(3, 0, times, 5), "b": Counters(0, 0, {}, 7)}
    cli("rollout", "start", "2")
    loaded = next(
        one for one in read_journal(host.rollouts / "1") if one.event is JournalEvent.LOADED
    )
    assert loaded.details == {"times": ["ttft"], "memory": True}
    while not host.service.acts:
        time.sleep(0.01)
    shown = cli("rollout", "status").stdout
    assert "  not tested: different answers\n" in shown
    assert "  memory  " in shown


def test_servers_that_tell_nothing(host: Host, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as pods that no port-forward reaches: nobody is moved, and nothing stays loaded."""

    def fails(*_: object) -> None:
        raise ServerError("no metrics", remedy="look why")

    monkeypatch.setattr("tritonctl.rollout.host_environment.HostPlatform.counters", fails)
    assert cli("rollout", "start", "2").returncode == 7
    assert (host.loads, host.service.loaded) == (["2-bbbb"], {"a"})
    assert [entry.event for entry in read_journal(host.rollouts / "1")][-1] is JournalEvent.CLOSED


def test_nothing_to_show(cli: Cli, sandbox: Sandbox) -> None:
    """No rollout, no such rollout, no header."""
    for verb in ("status", "differences", "watch", "pause", "resume", "promote", "abort"):
        done = cli("rollout", verb)
        assert done.returncode == 2
        assert "the project has had none" in done.stderr
    assert cli("rollout", "start", "2").returncode == ConfigurationError.exit_code
    with open_journal(sandbox.root / ".tritonctl" / "rollouts", 1) as (journal, _):
        journal.add(STARTED)
        journal.add(LOADED)
        journal.add(JournalEntry(1.0, JournalEvent.PROMOTED, {"reason": "all steps"}))
        journal.add(JournalEntry(1.0, JournalEvent.MOVED, {"confirmed": True, "seconds": 0.1}))
        journal.add(JournalEntry(2.0, JournalEvent.CLOSED, {"slot": "a"}))
    assert "no rollout 2: the last one is 1" in cli("rollout", "status", "--number", "2").stderr
    watched = cli("rollout", "watch")
    assert (watched.returncode, "promoted" in watched.stdout) == (0, True)
    over = cli("rollout", "abort")
    assert over.returncode == 2
    assert "rollout 1 is over" in over.stderr

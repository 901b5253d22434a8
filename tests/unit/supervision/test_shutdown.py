# SPDX-License-Identifier: Apache-2.0
"""`Ending`, look by look: a clock that the test sets, no process, no metrics endpoint."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from tritonctl.runtimes.embedded import supervise
from tritonctl.supervision import supervisor
from tritonctl.supervision.readiness import Readiness
from tritonctl.supervision.supervisor import KILL_MARGIN_SECONDS, ServerShutdown

pytestmark = pytest.mark.timed

SERVER, STUB, OTHER_STUB = 4711, 4712, 4713
LIMIT = 30
REFUSAL = "refuse ['speller']"
GHOSTS = """\
"Timeout 9: Found 1 model versions that have in-flight inferences"
"Model 'speller' (version 1) has 1 in-flight inferences"
"Timeout 8: Found 1 model versions that have in-flight inferences"
"Model 'speller' (version 1) has 1 in-flight inferences"
"""


class World:
    """A server, its stubs, its metrics and the time; what was done to them, in order."""

    pid = SERVER

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.busy = False
        self.stubs: set[int] = set()
        self.killed: Collection[int] = ()
        self.crashing = False
        self.log = folder / "log"
        self.log.touch()
        self.done: list[str] = []
        self.metrics_read = 0
        self.searches = 0
        self.signals_amid_searches = 0
        self.readiness = Readiness("http://127.0.0.1:1/", clock=lambda: self.now)
        spec = {
            "exit_timeout_seconds": LIMIT,
            "metrics_url": "metrics",
            "log": str(self.log),
            "composing_models": ["speller_engine"],
            "argv": ["tritonserver"],
            "outer_ensembles": ["speller"],
        }
        self.ending = ServerShutdown(
            self,  # type: ignore[arg-type] # a Popen, of which it needs these two
            spec,
            self.readiness,
            clock=lambda: self.now,
            set_alarm=lambda seconds: self.done.append(f"alarm {seconds}"),
        )

    def terminate(self) -> None:
        """SIGTERM to the server."""
        self.done.append("terminate")

    def kill_group(self, leader: int) -> None:
        """SIGKILL to server and stubs."""
        self.done.append(f"kill {leader}")

    def streams_under_way(self, url: str) -> bool:
        """What the metrics tell."""
        assert url == "metrics"
        self.metrics_read += 1
        return self.busy

    def children(self, parent: int) -> set[int]:
        """A search through all processes."""
        assert parent == SERVER
        self.searches += 1
        if self.signals_amid_searches:
            self.signals_amid_searches -= 1
            self.ending.poll()
        return set(self.stubs)

    def looks(self, count: int = 1, *, apart: float = 0.25) -> list[str]:
        """So many looks; what was done in them."""
        before = len(self.done)
        for _ in range(count):
            self.now += apart
            self.ending.poll()
        return self.done[before:]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """An idle server that nobody has asked to end."""
    made = World(tmp_path)
    monkeypatch.setattr(supervisor, "kill_group", made.kill_group)
    monkeypatch.setattr(supervisor, "has_active_streams", made.streams_under_way)
    monkeypatch.setattr(
        supervisor, "start_unloading", lambda _, names, __: made.done.append(f"refuse {names}")
    )
    monkeypatch.setattr(supervisor, "child_processes", made.children)
    monkeypatch.setattr(supervisor, "was_killed", lambda pid: pid in made.killed)
    monkeypatch.setattr(supervisor, "in_crash_handler", lambda pid: pid == SERVER and made.crashing)
    return made


def test_until_somebody_asks_nothing_happens(world: World) -> None:
    """Not even the metrics are read."""
    assert world.looks(1000) == []
    assert world.metrics_read == 0
    assert not world.ending.requested


def test_a_start_that_answers_nothing_holds_up_no_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readiness is asked for at every look, for no longer than until the next; then it is known."""
    answers, asked, known = [False, False, True], [], []

    def is_ready(url: str, seconds: float) -> bool:
        asked.append((url, seconds))
        return answers.pop(0)

    monkeypatch.setattr(supervise, "is_ready", is_ready)
    ending = supervise._EmbeddedShutdown(
        world,  # type: ignore[arg-type]
        {"ready_url": "ready"},
        None,
        lambda: known.append(len(asked)),
    )
    ending._set_alarm = lambda seconds: world.done.append(f"alarm {seconds}")
    for _ in range(5):
        ending.poll()
    assert asked == [("ready", supervise._READY_SECONDS)] * 3
    assert supervise._READY_SECONDS < supervisor.WATCH_SECONDS
    assert known == [3]
    assert world.done == [f"alarm {supervisor.WATCH_SECONDS}"]


def test_two_quiet_looks_running_end_it(world: World) -> None:
    """One could miss a request that just came; a busy look begins the count anew."""
    world.ending.stop()
    assert world.ending.requested
    assert world.done == ["alarm 0.25"]
    for busy in (True, False, True, False, True):
        world.busy = busy
        assert world.looks() == []
    world.busy = False
    assert world.looks() == []
    assert world.looks() == ["terminate"]


def test_it_is_asked_to_end_once(world: World) -> None:
    """Further quiet looks, and further signals, ask nothing more."""
    world.ending.stop()
    assert world.looks(2) == ["terminate"]
    world.ending.stop()
    world.ending.stop()
    assert world.looks(20) == []
    assert world.done == ["alarm 0.25", "terminate"]
    assert world.metrics_read == 2


def test_a_second_signal_waits_for_no_stream(world: World) -> None:
    """At once, without a look; the alarm is set once."""
    world.busy = True
    world.ending.stop()
    world.ending.stop()
    assert world.done == ["alarm 0.25", "terminate"]


def test_streams_have_the_exit_timeout(world: World) -> None:
    """They may use all of it, and no more."""
    world.busy = True
    world.ending.stop()
    assert world.looks(apart=LIMIT) == [REFUSAL]
    assert world.looks(apart=0.01) == ["terminate"]


def test_a_server_that_is_asked_without_a_pause(world: World) -> None:
    """In the second half of the time it refuses what is new, once; then it is idle."""
    world.busy = True
    world.ending.stop()
    assert world.looks(apart=LIMIT / 2) == []
    assert world.looks(apart=0.01) == [REFUSAL]
    assert "new requests are refused now" in world.log.read_text(encoding="utf-8")
    assert world.looks(10) == []
    world.busy = False
    assert world.looks(2) == ["terminate"]


def test_a_server_that_does_not_end_is_killed(world: World) -> None:
    """The margin comes on top of the exit timeout, both counted from the first signal."""
    world.ending.stop()
    assert world.looks(2) == ["terminate"]
    assert world.looks(apart=LIMIT + KILL_MARGIN_SECONDS - 0.5) == []
    assert world.looks(apart=0.01) == [f"kill {SERVER}"]


def test_a_server_that_waits_for_ghosts_is_killed(world: World) -> None:
    """What its log said before it was asked to end does not count."""
    world.log.write_text(GHOSTS, encoding="utf-8")
    world.ending.stop()
    assert world.looks(4) == ["terminate"]
    with world.log.open("a", encoding="utf-8") as log:
        log.write(GHOSTS)
    assert world.looks() == [f"kill {SERVER}"]


def test_gateways_see_the_end_before_quiet_looks_count(world: World) -> None:
    """More requests may be on their way until then: the metrics are not even read."""
    world.readiness.answer_probe()
    world.ending.stop()
    assert not world.readiness.answer_probe()
    assert world.looks(11) == []
    assert world.metrics_read == 0
    assert world.looks(2) == ["terminate"]


def test_gateways_have_the_exit_timeout_too(world: World) -> None:
    """One that asks and asks cannot hold the server."""
    world.busy = True
    world.ending.stop()
    world.now += LIMIT
    world.readiness.answer_probe()
    assert world.looks(apart=0.01) == ["terminate"]


def test_a_stub_seen_killed_once_ends_nothing(world: World) -> None:
    """Triton itself kills one that does not unload, and takes note of it at once."""
    world.stubs = {STUB, OTHER_STUB}
    assert world.looks() == []
    world.killed = {STUB}
    assert world.looks() == []
    world.killed = ()
    assert world.looks() == []
    world.killed = {STUB}
    assert world.looks() == []
    world.killed = {OTHER_STUB}
    assert world.looks() == []
    assert world.log.read_text(encoding="utf-8") == ""


def test_a_stub_that_stays_killed_ends_the_server(world: World) -> None:
    """Its streams would hang; the log says why, and nobody has asked for it."""
    world.stubs = {STUB, OTHER_STUB}
    world.killed = {STUB}
    assert world.looks() == []
    world.killed = {STUB, OTHER_STUB}
    assert world.looks(apart=1.0) == [f"kill {SERVER}"]
    told = world.log.read_text(encoding="utf-8")
    assert told.startswith("tritonctl: a stub process of a Python model was killed; ")
    assert told.count("\n") == 1
    assert not world.ending.requested


def test_stubs_are_watched_while_streams_finish(world: World) -> None:
    """A stream whose stub was killed would never finish."""
    world.stubs, world.busy = {STUB}, True
    world.ending.stop()
    assert world.looks(3) == []
    world.killed = {STUB}
    assert world.looks(5) == [f"kill {SERVER}"]


def test_triton_has_a_second_to_reap_a_stub_that_it_killed(world: World) -> None:
    """Looks follow each other at once where one took long, and a starved Triton is slow to reap."""
    world.stubs = {STUB}
    world.killed = {STUB}
    assert world.looks(9, apart=0.1) == []
    world.killed = ()
    assert world.looks(apart=0.2) == []


def test_a_signal_amid_a_look_begins_no_other(world: World) -> None:
    """Both would see the same moment, and take it for two that are seconds apart."""
    world.crashing = True
    world.stubs = world.killed = {STUB}
    world.signals_amid_searches = 1
    assert world.looks() == []
    assert world.searches == 1
    world.crashing, world.killed = False, ()
    assert world.looks(3, apart=5.1) == []
    assert world.searches == 4


def test_a_look_that_fails_is_not_the_last(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next signal looks again."""

    def fail(parent: int) -> set[int]:
        raise OSError(parent)

    monkeypatch.setattr(supervisor, "child_processes", fail)
    with pytest.raises(OSError, match=str(SERVER)):
        world.looks()
    monkeypatch.setattr(supervisor, "child_processes", world.children)
    world.looks(apart=5.1)
    assert world.searches == 1


def test_stubs_are_searched_for_every_five_seconds(world: World) -> None:
    """Which looks at every process of the machine; a stub that comes later is found, too."""
    world.looks(11, apart=0.5)
    assert world.searches == 1
    world.stubs = world.killed = {STUB}
    assert world.looks(apart=0.25) == []
    assert world.searches == 2
    assert world.looks(apart=1.0) == [f"kill {SERVER}"]


def test_a_crash_handler_that_hangs_ends_the_server(world: World) -> None:
    """One that works prints its stack trace and is done when we look again, five seconds later."""
    world.crashing = True
    assert world.looks() == []
    assert world.looks(10, apart=0.25) == []
    assert world.looks(apart=5.1) == [f"kill {SERVER}"]
    assert world.ending.reason == "tritonserver hung in its own crash handler"


def test_a_crash_handler_seen_once_ends_nothing(world: World) -> None:
    """It has finished, and so has the server: whoever waits for it knows."""
    world.crashing = True
    assert world.looks() == []
    world.crashing = False
    assert world.looks(2, apart=5.1) == []
    world.crashing = True
    assert world.looks(apart=5.1) == []

# SPDX-License-Identifier: Apache-2.0
"""Crashed servers start again, within bounds: the rule by itself, then with a shell script."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.supervision.test_supervisor import Supervised, prefix  # noqa: F401 - a fixture
from tritonctl.runtimes.embedded.supervise import _ServerSupervisor
from tritonctl.supervision import restarts
from tritonctl.supervision.exec_launcher import STOP_SIGNALS
from tritonctl.supervision.restarts import (
    RESTART_DELAYS,
    WINDOW_SECONDS,
    Restarts,
    describe_crashes,
    read_restarts,
)

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import WaitUntil

ABORT = "signal 6 (SIGABRT)"


class Clock:
    """Seconds that the test counts."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_pauses_grow_until_it_stays_down(tmp_path: Path) -> None:
    """An isolated crash costs no pause; the sixth within ten minutes is the last."""
    clock = Clock()
    kept = Restarts(tmp_path / "r.json", clock=clock)
    assert [kept.record_crash(ABORT) for _ in range(6)] == [*RESTART_DELAYS, None]
    clock.now += WINDOW_SECONDS
    assert kept.record_crash(ABORT) == 0.0


def test_only_crashes_of_the_last_ten_minutes_count(tmp_path: Path) -> None:
    """One every four minutes never adds up."""
    clock = Clock()
    kept = Restarts(tmp_path / "r.json", clock=clock)
    for expected in (0.0, 1.0, 2.0, 2.0, 2.0, 2.0):
        assert kept.record_crash(ABORT) == expected
        clock.now += WINDOW_SECONDS * 0.4


def test_causes_count_separately(tmp_path: Path) -> None:
    """Six crashes by a client's requests leave a stub that is out of memory its restarts."""
    kept = Restarts(tmp_path / "r.json", clock=Clock())
    assert [kept.record_crash(ABORT) for _ in range(5)] == [*RESTART_DELAYS]
    assert kept.record_crash("a stub process of a Python model was killed") == 0.0
    assert kept.recent_crashes == 1
    assert kept.record_crash(ABORT) is None
    assert kept.recent_crashes == 6


def test_the_record_says_when_how_and_for_how_long(tmp_path: Path) -> None:
    """For `status`: being ready for the first time is no news."""
    clock, file = Clock(), tmp_path / "r.json"
    kept = Restarts(file, clock=clock, wall_clock=lambda: 1_700_000_000.0)
    assert kept.record_ready() is None
    assert read_restarts(file) == []
    kept.record_crash(ABORT)
    clock.now += 2.5
    assert describe_crashes(read_restarts(file)).endswith(f"{ABORT}; not ready since")
    assert kept.record_ready() == 2.5
    kept.record_crash("exit code 1")
    clock.now += 1.25
    kept.record_ready()
    crashes = read_restarts(file)
    assert [(each.time, each.how, each.ready_after) for each in crashes] == [
        (1_700_000_000.0, ABORT, 2.5),
        (1_700_000_000.0, "exit code 1", 1.25),
    ]
    text = describe_crashes(crashes)
    assert text.startswith("crashed 2 times, last at 20")
    assert text.endswith(": exit code 1; restarted, ready after 1.2 s")


@pytest.fixture
def ready_url(tmp_path: Path) -> Iterator[str]:
    """Says that every model is ready; whoever waits for `asked` knows that it was asked."""

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            (tmp_path / "asked").touch()

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


# Each life has a line in `lives` and goes on until somebody has asked whether it is ready. That is
# asked once, maybe before its first command: what tells of it is removed at the end of a life.
LIFE = "echo >> lives; until [ -e asked ]; do sleep 0.05; done; rm asked; "


@pytest.fixture
def crashing(tmp_path: Path, prefix: str, ready_url: str) -> Iterator[Any]:  # noqa: F811
    """Start a supervisor on what follows LIFE."""
    started: list[Supervised] = []

    def start(script: str, **more: object) -> Supervised:
        specification: dict[str, Any] = {"restart": True, "ready_url": ready_url, **more}
        started.append(Supervised(tmp_path, prefix, LIFE + script, **specification))
        return started[-1]

    yield start
    for supervised in started:
        supervised.end()


def lives(tmp_path: Path) -> int:
    """How often the server was started."""
    return (tmp_path / "lives").read_text(encoding="utf-8").count("\n")


def test_a_server_that_was_ready_starts_again(
    crashing: Any, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """After an abort, without what a reload had left; `down` ends its second life in order."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "model").touch()
    supervised = crashing("[ $(wc -l < lives) = 1 ] && kill -ABRT $$; exec sleep 60")
    file = tmp_path / "restarts.json"
    wait_until(lambda: any(each.ready_after is not None for each in read_restarts(file)))
    assert [each.how for each in read_restarts(file)] == [ABORT]
    assert list((tmp_path / "beside").iterdir()) == []
    wait_until(lambda: lives(tmp_path) == 2)  # ready by its port, maybe before its first command
    os.kill(supervised.pid, signal.SIGTERM)
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (-signal.SIGTERM, True)
    assert lives(tmp_path) == 2  # and no third
    log = supervised.log.read_text(encoding="utf-8")
    assert f"tritonserver crashed: {ABORT}; restarting it in 0 s (restart 1 of 5" in log
    assert "every model is ready again" in log


@pytest.mark.parametrize(
    ("script", "more"),
    [
        pytest.param("kill -ABRT $$", {"restart": False}, id="not wanted"),
        pytest.param("exit 0", {}, id="ended in order"),
        pytest.param("kill -ABRT $$", {"ready_url": "http://127.0.0.1:1/"}, id="never ready"),
    ],
)
def test_a_server_that_stays_down(
    crashing: Any, tmp_path: Path, wait_until: WaitUntil, script: str, more: dict[str, Any]
) -> None:
    """Where the user says so, where somebody has ended it, and where it never came up."""
    supervised = crashing(script, **more)
    if "ready_url" in more:  # nobody asks there: the test lets it go on
        wait_until((tmp_path / "lives").exists)
        (tmp_path / "asked").touch()
    wait_until(supervised.exit.exists)
    assert lives(tmp_path) == 1
    assert not supervised.outcome()[1]


@pytest.fixture
def held_signals() -> Iterator[None]:
    """As the supervisor holds them between two lives; for this thread alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("held_signals")
def test_down_between_two_lives(tmp_path: Path) -> None:
    """Asked to end while it is down, it starts no more, and has been asked."""
    spec = {
        "restart": True,
        "restarts_file": str(tmp_path / "r.json"),
        "log": str(tmp_path / "log"),
    }
    supervised = _ServerSupervisor(spec, None)
    assert supervised._may_restart(ABORT)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    assert not supervised._may_restart(ABORT)
    assert supervised._requested


def test_too_many_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays down, and the log says why."""
    monkeypatch.setattr(restarts, "RESTART_DELAYS", (0.0, 0.0))
    log = tmp_path / "log"
    spec = {"restart": True, "restarts_file": str(tmp_path / "r.json"), "log": str(log)}
    supervised = _ServerSupervisor(spec, None)
    assert [supervised._may_restart(ABORT) for _ in range(3)] == [True, True, False]
    assert "3 such crashes within 10 minutes are too many: it stays down" in log.read_text("utf-8")


def test_a_failed_assertion_is_part_of_the_cause(
    tmp_path: Path, crashing: Any, wait_until: WaitUntil
) -> None:
    """Of this life: the next one crashes without a word."""
    script = (
        "[ -e second ] || echo 'E1129 proto.h:65] ASSERTION FAILED: !byte_buffer->Valid()'; "
        "if [ -e second ]; then exec sleep 600; fi; touch second; kill -ABRT $$"
    )
    crashing(script)
    wait_until(lambda: read_restarts(tmp_path / "restarts.json"))
    [crash] = read_restarts(tmp_path / "restarts.json")
    assert crash.how == f"{ABORT}: ASSERTION FAILED: !byte_buffer->Valid()"

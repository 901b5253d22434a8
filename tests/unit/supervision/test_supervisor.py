# SPDX-License-Identifier: Apache-2.0
"""The supervisor, with a shell script for a server: nothing survives, nobody else is touched."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.host.process import process_start_time
from tritonctl.runtimes.embedded.exit_record import exit_summary, record_exit
from tritonctl.supervision import supervisor
from tritonctl.supervision.restarts import read_restarts
from tritonctl.supervision.supervisor import (
    child_processes,
    has_active_streams,
    in_crash_handler,
    kill_and_remove_shm,
    process_fields,
    server_leftovers,
    server_processes,
    waits_only_for_lost_requests,
    was_killed,
)

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import WaitUntil

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton's Python backend puts its regions


@pytest.fixture
def prefix() -> Iterator[str]:
    """A shared-memory prefix of our own, cleaned up whatever happens."""
    name = f"tritonctl_test_{uuid.uuid4().hex[:12]}_"
    yield name
    for region in SHARED_MEMORY.glob(f"*{name}*"):
        region.unlink()


def _pretend(name: str, prefix: str) -> subprocess.Popen[bytes]:
    """A process called `name` with the prefix on its command line, waiting for its input."""
    return subprocess.Popen(
        [name, "-c", "trap '' TERM; echo up; read line", prefix],
        executable="/bin/sh",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _started(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_clean_up_ends_stubs_and_removes_regions(prefix: str) -> None:
    """A stub that ignores SIGTERM and two regions go; the report says what was there."""
    region = SHARED_MEMORY / f"{prefix}region_1"
    region.write_bytes(b"x")
    with _started(_pretend("/opt/triton_python_backend_stub", f"{prefix}stub")) as stub:
        assert set(server_leftovers(prefix)) == {f"process {stub.pid}", str(region)}
        kill_and_remove_shm(prefix)
        assert stub.wait(timeout=60) == -signal.SIGKILL
    assert not region.exists()
    assert server_leftovers(prefix) == []


def test_what_a_stub_has_started_is_the_server_s(prefix: str, wait_until: WaitUntil) -> None:
    """An engine's own process, which has no prefix on its command line; it goes with the rest."""
    script = "sleep 600 & echo $!; read line"
    with subprocess.Popen(
        ["/opt/triton_python_backend_stub", "-c", script, prefix],
        executable="/bin/sh",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as stub:
        assert stub.stdout is not None
        engine = int(stub.stdout.readline())
        assert set(server_processes(prefix)) == {stub.pid, engine}
        kill_and_remove_shm(prefix)
    wait_until(lambda: process_start_time(engine) is None)


def test_clean_up_spares_everybody_else(prefix: str) -> None:
    """Other programs that mention the prefix, other servers' stubs, other regions stay."""
    other = f"other_{prefix}"
    region = SHARED_MEMORY / f"{other}region"
    region.write_bytes(b"x")
    with (
        _started(_pretend("/usr/bin/less", f"log-of-{prefix}")) as reader,
        _started(_pretend("/opt/triton_python_backend_stub", "tritonctl_somebody_else_")) as stub,
    ):
        kill_and_remove_shm(prefix)
        assert process_start_time(reader.pid)
        assert process_start_time(stub.pid)
        assert region.exists()
        for process in (reader, stub):
            process.communicate(b"\n")
    region.unlink()


def test_clean_up_of_nothing(prefix: str) -> None:
    """Cleaning twice, or after a clean end, is no error."""
    kill_and_remove_shm(prefix)
    kill_and_remove_shm(prefix)


def test_an_empty_prefix_names_nobody(prefix: str) -> None:
    """It would match every Triton of the machine."""
    region = Path("/dev/shm", f"{prefix}_region")  # noqa: S108 - where regions are
    region.touch()
    kill_and_remove_shm("")
    assert region.exists()
    region.unlink()


NOBODY = "http://127.0.0.1:1/metrics"


class Supervised:
    """A supervisor whose server is a shell script; $P in it begins the names of its regions."""

    def __init__(
        self, tmp_path: Path, prefix: str, script: str, metrics_url: str = NOBODY, **more: object
    ) -> None:
        self.log, self.exit = tmp_path / "log", tmp_path / "exit.json"
        specification = {
            "argv": ["/bin/sh", "-c", script],
            "environment": {"PATH": os.environ["PATH"], "P": str(SHARED_MEMORY / prefix)},
            "folder": str(tmp_path),
            "log": str(self.log),
            "exit_file": str(self.exit),
            "shm_prefix": prefix,
            "composing_models": ["speller_engine"],
            "metrics_url": metrics_url,
            "restart": False,
            "restarts_file": str(tmp_path / "restarts.json"),
            "ready_url": NOBODY,
            "beside": str(tmp_path / "beside"),
            "ports": {},
            "exit_timeout_seconds": 3600,  # beyond any patience: nothing here may end by it
            **more,
        }
        file = tmp_path / "supervisor.json"
        file.write_text(json.dumps(specification), encoding="utf-8")
        argv = [sys.executable, "-m", "tritonctl.runtimes.embedded.supervise", str(file)]
        # It goes on in the background at once, so this returns.
        said = subprocess.run(argv, capture_output=True, timeout=30, check=True)
        self.pid = int(said.stdout)

    def end(self) -> None:
        """End supervisor and server, in whatever state a failed test left them."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def outcome(self) -> tuple[int, bool]:
        """Return code of the server, and whether its end was asked for."""
        record = json.loads(self.exit.read_text(encoding="utf-8"))
        return record["returncode"], record["requested"]


Supervise = Callable[[str], Supervised]


@pytest.fixture
def supervise(tmp_path: Path, prefix: str) -> Iterator[Supervise]:
    """Start a supervisor on a shell script; it is ended with the test."""
    started: list[Supervised] = []

    def start(script: str) -> Supervised:
        started.append(Supervised(tmp_path, prefix, script))
        return started[-1]

    yield start
    for supervised in started:
        supervised.end()


def test_a_crash_is_recorded_and_cleaned_up(
    supervise: Supervise, prefix: str, wait_until: WaitUntil
) -> None:
    """Exit status, log and an empty /dev/shm after a server that died by itself."""
    supervised = supervise("touch ${P}region; echo dying; exit 7")
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (7, False)
    assert supervised.log.read_text(encoding="utf-8") == "dying\n"
    assert server_leftovers(prefix) == []
    wait_until(lambda: process_start_time(supervised.pid) is None)


def test_what_fails_in_the_supervisor_is_in_the_log(
    tmp_path: Path, prefix: str, wait_until: WaitUntil
) -> None:
    """Its own standard error leads nowhere, and `up` has nothing else to tell."""
    supervised = Supervised(tmp_path, prefix, "", folder="/no/such/folder")
    wait_until(lambda: process_start_time(supervised.pid) is None)
    assert "No such file or directory: '/no/such/folder'" in supervised.log.read_text("utf-8")
    wait_until(supervised.exit.exists)  # its guard writes it
    assert exit_summary(supervised.exit) == "its supervisor died: exit code 1"


def test_a_server_that_cannot_be_started(
    tmp_path: Path, prefix: str, wait_until: WaitUntil
) -> None:
    """Ends with a shell's status for that, and the log says why."""
    supervised = Supervised(tmp_path, prefix, "", argv=["/no/such/tritonserver"])
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (127, False)
    told = "cannot start /no/such/tritonserver: No such file or directory"
    assert told in supervised.log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("returncode", "requested", "reason", "words"),
    [
        (1, False, None, "exit code 1"),
        (-11, False, None, "signal 11 (SIGSEGV)"),
        (-9, False, "a stub was killed", "a stub was killed"),
        (-15, True, None, "a stop was requested"),
    ],
)
def test_how_a_server_ended(
    tmp_path: Path, returncode: int, requested: bool, reason: str | None, words: str
) -> None:
    """By itself, by its supervisor, or by somebody who asked that for it."""
    record_exit(tmp_path / "exit.json", returncode, requested=requested, reason=reason)
    assert exit_summary(tmp_path / "exit.json") == words


def test_where_and_on_what_stack_the_server_runs(
    supervise: Supervise, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """In the folder that it is told; threads have room for a large body of HTTP."""
    supervised = supervise("pwd; ulimit -s")
    wait_until(supervised.exit.exists)
    folder, kibibytes = supervised.log.read_text(encoding="utf-8").splitlines()
    assert folder == str(tmp_path)
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    assert int(kibibytes) == (65536 if most == resource.RLIM_INFINITY else min(65536, most >> 10))


def test_it_leaves_session_and_terminal(
    supervise: Supervise, prefix: str, wait_until: WaitUntil
) -> None:
    """A Ctrl-C in the terminal it was started from does not reach it."""
    supervised = supervise("touch ${P}up; exec sleep 60")
    wait_until(lambda: server_leftovers(prefix))
    assert os.getsid(supervised.pid) != os.getsid(0)
    assert os.getpgid(supervised.pid) != os.getpgid(0)
    for stream in ("0", "1", "2"):
        assert Path(f"/proc/{supervised.pid}/fd/{stream}").readlink() == Path(os.devnull)
    os.kill(supervised.pid, signal.SIGTERM)
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (-signal.SIGTERM, True)


def test_sigterm_is_passed_on(supervise: Supervise, prefix: str, wait_until: WaitUntil) -> None:
    """`down` ends the server in order: it gets to finish, then its children are killed."""
    wait = "sleep 60 & for i in $(seq 600); do sleep 0.1; done"
    script = f"trap 'echo bye; exit 0' TERM; touch ${{P}}region; {wait}"
    supervised = supervise(script)
    wait_until(lambda: server_leftovers(prefix))
    os.kill(supervised.pid, signal.SIGTERM)
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (0, True)
    assert supervised.log.read_text(encoding="utf-8") == "bye\n"
    assert server_leftovers(prefix) == []


def test_sigterm_at_the_first_moment(
    supervise: Supervise, prefix: str, wait_until: WaitUntil
) -> None:
    """As soon as the process id is known it may be asked to end, and does so in order."""
    for _ in range(5):
        supervised = supervise("touch ${P}region; exec sleep 60")
        os.kill(supervised.pid, signal.SIGTERM)
        wait_until(supervised.exit.exists)
        assert supervised.outcome() == (-signal.SIGTERM, True)
        assert server_leftovers(prefix) == []
        supervised.exit.unlink()


def test_children_of_the_server_end_with_it(
    supervise: Supervise, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """What the server started is in its process group and is killed, deaf or not."""
    script = f"(trap '' TERM; sleep 60) & echo $! > {tmp_path}/child; exit 0"
    supervised = supervise(script)
    wait_until(supervised.exit.exists)
    child = int((tmp_path / "child").read_text(encoding="utf-8"))
    wait_until(lambda: process_start_time(child) is None)


def test_a_killed_supervisor_takes_its_server_along(
    supervise: Supervise, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """kill -9 of the supervisor: the kernel asks the server to end."""
    script = f"echo $$ > {tmp_path}/pid; touch {tmp_path}/up; exec sleep 60"
    supervised = supervise(script)
    wait_until((tmp_path / "up").exists)
    server = int((tmp_path / "pid").read_text(encoding="utf-8"))
    assert process_start_time(server)
    os.kill(supervised.pid, signal.SIGKILL)
    wait_until(lambda: process_start_time(server) is None)


def test_a_server_that_hangs_ends_after_its_supervisor(
    supervise: Supervise, tmp_path: Path, prefix: str, wait_until: WaitUntil
) -> None:
    """kill -9 of the supervisor: its guard kills a deaf server with its stubs, and records why."""
    script = (
        f"trap '' TERM; touch ${{P}}region; (sleep 600; :) & echo $! > {tmp_path}/stub; "
        f"echo $$ > {tmp_path}/own; mv {tmp_path}/own {tmp_path}/pid; "
        "while :; do sleep 0.1; done"
    )
    supervised = supervise(script)
    wait_until((tmp_path / "pid").exists)
    pids = [int((tmp_path / name).read_text(encoding="utf-8")) for name in ("pid", "stub")]
    os.kill(supervised.pid, signal.SIGKILL)
    wait_until(supervised.exit.exists)
    assert [process_start_time(pid) for pid in pids] == [None, None]
    assert server_leftovers(prefix) == []
    reason = "its supervisor died: signal 9 (SIGKILL)"
    assert exit_summary(supervised.exit) == reason
    assert [crash.how for crash in read_restarts(tmp_path / "restarts.json")] == [reason]
    assert f"tritonserver was ended: {reason}" in supervised.log.read_text(encoding="utf-8")


def test_a_guard_leaves_the_records_of_the_next_server(
    supervise: Supervise, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """`down` kills a supervisor and `up` starts another one, while a guard still waits."""
    script = f"trap '' TERM; echo $$ > {tmp_path}/own; mv {tmp_path}/own {tmp_path}/pid; "
    supervised = supervise(script + "while :; do sleep 0.1; done")
    wait_until((tmp_path / "pid").exists)
    server = int((tmp_path / "pid").read_text(encoding="utf-8"))
    (tmp_path / "supervisor.json").write_text('{"shm_prefix": "another"}', encoding="utf-8")
    os.kill(supervised.pid, signal.SIGKILL)
    wait_until(lambda: process_start_time(server) is None)
    assert not supervised.exit.exists()
    assert not (tmp_path / "restarts.json").exists()


def test_no_guard_outlives_its_supervisor(supervise: Supervise, wait_until: WaitUntil) -> None:
    """A server that ends in order leaves no process of ours."""
    supervised = supervise("exec sleep 600")
    guard = int((process_fields(supervised.pid) or [b"", b"0"])[1])
    assert process_start_time(guard)
    os.kill(supervised.pid, signal.SIGTERM)
    wait_until(supervised.exit.exists)
    wait_until(lambda: process_start_time(guard) is None)


def test_a_server_that_waits_for_ghosts_is_killed(
    supervise: Supervise, tmp_path: Path, prefix: str, wait_until: WaitUntil
) -> None:
    """Long before its hour is over, when its log says what it waits for."""
    (tmp_path / "said").write_text(_round(9, "speller") + _round(8, "speller"), encoding="utf-8")
    script = (
        f"trap 'cat {tmp_path}/said' TERM; touch ${{P}}up; for i in $(seq 600); do sleep 0.1; done"
    )
    supervised = supervise(script)
    wait_until(lambda: server_leftovers(prefix))
    os.kill(supervised.pid, signal.SIGTERM)
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (-signal.SIGKILL, True)


class _Metrics(BaseHTTPRequestHandler):
    """A server with streams until it is told otherwise."""

    text = ""
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(type(self).text.encode())

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@pytest.fixture
def metrics() -> Iterator[tuple[str, type[_Metrics]]]:
    """An endpoint and what it tells."""

    class Metrics(_Metrics):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics", Metrics
        server.shutdown()


BUSY = """# TYPE tritonctl_active_streams gauge
tritonctl_active_streams{model="speller_engine",model_instance="a",version="1"} 0
tritonctl_active_streams{model="other_engine",model_instance="b",version="1"} 2
"""
WAITING = """tritonctl_active_streams{model="a"} 0
nv_inference_pending_request_count{model="speller_engine",version="1"} 1
"""
QUIET = """tritonctl_active_streams{model="a"} 0
tritonctl_requests_total{model="a",outcome="stop"} 7
"""


@pytest.mark.parametrize(("text", "expected"), [(BUSY, True), (WAITING, True), (QUIET, False)])
def test_streams_under_way(
    metrics: tuple[str, type[_Metrics]],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    *,
    expected: bool,
) -> None:
    """Streams in an engine and requests in a queue count, what has ended does not."""
    monkeypatch.setattr(supervisor, "_METRICS_SECONDS", 30)  # late means busy
    url, told = metrics
    told.text = text
    assert has_active_streams(url) is expected
    assert has_active_streams(NOBODY) is False


def test_an_endpoint_that_talks_nonsense_has_nothing_to_finish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It must not end the supervisor, which has yet to clean up."""
    monkeypatch.setattr(supervisor, "_METRICS_SECONDS", 30)  # late means busy
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"no HTTP at all\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert has_active_streams(f"http://127.0.0.1:{listening.getsockname()[1]}/") is False
        thread.join()


def test_an_endpoint_that_answers_late_may_have_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that has gone: this one is too busy to tell."""
    monkeypatch.setattr(supervisor, "_METRICS_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert has_active_streams(f"http://127.0.0.1:{silent.getsockname()[1]}/") is True


def test_streams_may_finish_before_the_server_is_asked_to_end(
    tmp_path: Path, prefix: str, metrics: tuple[str, type[_Metrics]], wait_until: WaitUntil
) -> None:
    """Nothing happens while a stream is under way; then the server ends in order."""
    url, told = metrics
    told.text = BUSY
    script = "trap 'echo bye; exit 0' TERM; touch ${P}up; for i in $(seq 600); do sleep 0.1; done"
    supervised = Supervised(tmp_path, prefix, script, url)
    wait_until(lambda: server_leftovers(prefix))
    os.kill(supervised.pid, signal.SIGTERM)
    wait_until(lambda: told.asked >= 4)
    assert supervised.log.read_text(encoding="utf-8") == ""
    told.text = QUIET
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (0, True)


def test_asked_twice_it_waits_for_no_stream(
    tmp_path: Path, prefix: str, metrics: tuple[str, type[_Metrics]], wait_until: WaitUntil
) -> None:
    """Who insists gets it."""
    url, told = metrics
    told.text = BUSY
    supervised = Supervised(tmp_path, prefix, "touch ${P}up; exec sleep 60", url)
    wait_until(lambda: server_leftovers(prefix))
    os.kill(supervised.pid, signal.SIGTERM)
    wait_until(lambda: told.asked)  # the first one has arrived
    os.kill(supervised.pid, signal.SIGTERM)
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (-signal.SIGTERM, True)


def _round(seconds: int, *models: str) -> str:
    """One round of tritonserver 2.51's countdown to its end."""
    head, place = "I1121 03:57:01.100001 6222 server.cc", f"{seconds}: Found {len(models)}"
    text = f'{head}:323] "Timeout {place} model versions that have in-flight inferences"\n'
    for model in models:
        text += f"{head}:338] \"Model '{model}' (version 1) has 1 in-flight inferences\"\n"
    return text


UNLOADED = (
    "I1121 03:57:00.9 6222 model_lifecycle.cc:624] \"successfully unloaded '{}' version 1\"\n"
)


@pytest.mark.parametrize(
    ("log", "ghosts"),
    [
        ("", False),
        (_round(9, "speller"), False),
        (_round(9, "speller") + _round(8, "speller"), True),
        (_round(9, "speller", "speller_engine") + _round(8, "speller", "speller_engine"), False),
        (_round(9, "speller", "speller_engine") + _round(8, "speller"), False),
        (_round(9, "speller", "speller_engine") + _round(8, "speller") * 2, True),
        (_round(9, "speller") + _round(8, "speller", "speller_engine"), False),
        (_round(9) + _round(8), False),
        (UNLOADED.format("speller_engine") + _round(9) + _round(8), True),
        (UNLOADED.format("speller_engine") + _round(9), False),
        (_round(9) + _round(8) + UNLOADED.format("speller_engine"), False),
        (UNLOADED.format("speller_tokenizer") + _round(9) + _round(8), False),
    ],
)
def test_only_ghosts(log: str, ghosts: bool) -> None:
    """No composing model busy, or none left, in two rounds running."""
    assert waits_only_for_lost_requests(log, ["speller_engine"]) is ghosts


# Like tritonserver of a stub's, it takes no note of its child's end.
PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen(["/bin/sleep", "60"])
pathlib.Path(sys.argv[1], "writing").write_text(str(child.pid))
pathlib.Path(sys.argv[1], "writing").rename(pathlib.Path(sys.argv[1], "child"))
time.sleep(61)
"""


def test_a_killed_stub_ends_the_server(
    supervise: Supervise, tmp_path: Path, prefix: str, wait_until: WaitUntil
) -> None:
    """Its streams would hang; the log says why it ended."""
    (tmp_path / "parent.py").write_text(PARENT, encoding="utf-8")
    supervised = supervise(f"exec {sys.executable} {tmp_path}/parent.py {tmp_path}")
    wait_until((tmp_path / "child").exists)
    os.kill(int((tmp_path / "child").read_text(encoding="utf-8")), signal.SIGKILL)
    wait_until(supervised.exit.exists)
    assert supervised.outcome() == (-signal.SIGKILL, False)
    assert "a stub process of a Python model was killed" in supervised.log.read_text("utf-8")
    assert exit_summary(supervised.exit).startswith("a stub process of a Python model was killed")
    assert server_leftovers(prefix) == []


def test_a_thread_in_the_handler_of_a_fatal_signal() -> None:
    """The kernel blocks the signal meanwhile, as this thread does by itself.

    A thread that starts another one, or a program, has every signal blocked by the C library: on a
    busy machine long enough to be seen, and a server that starts was ended for it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert not in_crash_handler(os.getpid())
    try:
        for fatal in (signal.SIGABRT, signal.SIGSEGV):
            signal.pthread_sigmask(signal.SIG_SETMASK, {fatal})
            assert in_crash_handler(os.getpid())
        for none in ({signal.SIGTERM}, signal.valid_signals()):
            signal.pthread_sigmask(signal.SIG_SETMASK, none)
            assert not in_crash_handler(os.getpid())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_children_and_how_they_ended() -> None:
    """One that lives, one that ended, one that was killed; strangers are none of ours."""
    living = subprocess.Popen(["/bin/sleep", "60"])
    ended = subprocess.Popen(["/bin/true"])
    killed = subprocess.Popen(["/bin/sleep", "60"])
    killed.kill()
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        ours = (living.pid, ended.pid, killed.pid)
        assert set(ours) <= child_processes(os.getpid())
        assert os.getpid() not in child_processes(os.getpid())
        assert [was_killed(pid) for pid in ours] == [False, False, True]
    finally:
        living.kill()
        for process in (living, ended, killed):
            process.wait()
    assert not set(ours) & child_processes(os.getpid())
    assert not was_killed(killed.pid)

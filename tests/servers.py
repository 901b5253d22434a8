# SPDX-License-Identifier: Apache-2.0
"""Handles of real servers: started when a test first takes one, proven alive by each that does.

A server lives as long as its handle, often a whole session; a test that kills it, or that it dies
under, must not take the next ones along. So fixtures of sessions hold handles, and tests get what
`Handle.ready` returns: the state of a server that has just answered.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Generic, TypeVar

import pytest

from tritonctl.errors import ServerError, TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.repository.publish import render
from tritonctl.runtimes.discovery import is_running
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.lifecycle import running_server, start, stop
from tritonctl.runtimes.server_state import ContainerServer, EmbeddedServer, Server, ServerFiles
from tritonctl.supervision.supervisor import kill_and_remove_shm

CHECKOUT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 120.0
PROOF_SECONDS = 30.0
LOG_LINES = 60
PACE = "pace.json"
# What tests kill stays dead, so that they see what is left; test_restart.py has what starts again.
ON_FREE_PORTS = {"grpc_port": 0, "http_port": 0, "metrics_port": 0, "restart": False}
# Not one token: what an engine's prefix cache makes of that is for test_serving.py to say, and not
# for every test that asks afterwards.
PROOF = SamplingParameters(max_tokens=2, random_seed=0)
# An engine that takes its time, so that a test can act amid the answers; the test says how long.
# `broken_steps`: so many steps in a row throw, for a request that no check would let through.
PACED = """

_whole_step = OpenvinoEngine.step
_given = {{}}
_broken = []


def _break(self):
    config = openvino_genai.GenerationConfig(max_new_tokens=2)
    config.structured_output_config = openvino_genai.StructuredOutputConfig(regex="((")
    ids = openvino.Tensor(np.ones((1, 1), dtype=np.int64))
    _broken.append(self._pipeline.add_request(2**62, ids, config))


def _paced_step(self):
    import json, time
    with open({file!r}) as file:
        pace = json.load(file)
    time.sleep(pace["step_seconds"])
    if not pace["broken_steps"]:
        _broken.clear()
    elif pace["broken_steps"] > len(_broken):
        _break(self)
    if not pace["stall_after"]:
        return _whole_step(self)
    progress = _whole_step(self) if self._running else []
    for item in progress:
        _given[item.stream_id] = _given.get(item.stream_id, 0) + len(item.token_ids)
    return [item for item in progress if _given[item.stream_id] <= pace["stall_after"]]


OpenvinoEngine.step = _paced_step
"""


AServer = TypeVar("AServer", EmbeddedServer, ContainerServer)


def embedded(server: Server) -> EmbeddedServer:
    """One that is known to run here."""
    assert isinstance(server, EmbeddedServer)
    return server


def server_pid(state: EmbeddedServer) -> int:
    """The process id of tritonserver itself, from its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        prefix = state.shm_prefix.encode()
        if arguments[0].endswith(b"/tritonserver") and prefix in b"".join(arguments):
            return int(entry.parent.name)
    raise AssertionError("tritonserver is not running")


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """What the condition gives once that is true; fail, saying what never happened."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)
    return found


@contextmanager
def meanwhile(threads: Sequence[Thread], done: Event) -> Iterator[None]:
    """They run as long as the context; `done` tells them its end, and they are waited for."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


class ServerHandle(Generic[AServer]):
    """A server of a project, and whatever happens to it. `model`: proves that it answers."""

    kind: type[AServer]

    def __init__(self, project: Project, model: str | None) -> None:
        self.project = project
        self.model = model
        self.proofs = 0  # requests of ours that it has answered since its start
        self.spent = False  # something was done to it that it may not survive, sooner or later
        self._states: list[AServer] = []

    @property
    def state(self) -> AServer:
        """Of the server that was started last."""
        return self._states[-1]

    @property
    def url(self) -> str:
        """Its gRPC endpoint."""
        return self.state.grpc_url

    def ready(self, item: pytest.Item, step_seconds: float = 0.0) -> AServer:
        """For one test: the state of a server that answers; a test's second attempt gets its own.

        step_seconds: how long a step of a paced engine takes, from now on.
        """
        item.stash.setdefault(USED, {})[id(self)] = self
        if (self.project.root / PACE).exists():
            self.pace(step_seconds)
        self._find()
        if getattr(item, "execution_count", 1) > 1 or not self.answers():
            self.fresh()
        return self.state

    def _find(self) -> None:
        """The server that a test has started itself, by command."""
        with suppress(ServerError):
            state = self._of_kind(running_server(self.project))
            if not self._states or state != self.state:
                self._states.append(state)
                self.spent = False

    def answers(self) -> bool:
        """Whether it runs, has all its models, and generates a token."""
        if self.spent or not self._states or not is_running(self.state):
            return False
        try:
            return check_health(self.state).ready and self._generates()
        except TritonctlError:
            return False

    def _generates(self) -> bool:
        if self.model is None:
            return True
        with TritonClient(self.url, tls=self.state.client_tls) as client:
            done = client.generate(self.model, "7", PROOF, timeout=PROOF_SECONDS)
        self.proofs += 1
        return done.num_output_tokens > 0

    def fresh(self) -> None:
        """Another server in place of the one that may still be there."""
        self.stop()
        self._start()

    def _start(self) -> None:
        state, _ = start(self.project, render(self.project, Silent()), Silent())
        self._states.append(self._of_kind(state))
        self.proofs, self.spent = 0, False

    def stop(self) -> None:
        """By force: nobody waits for what a failed test has left under way."""
        stop(self.project, Silent())

    def _of_kind(self, server: Server) -> AServer:
        assert isinstance(server, self.kind)
        return server

    def pace(self, step_seconds: float, stall_after: int = 0, broken_steps: int = 0) -> None:
        """Each step takes so long from now on; after so many tokens of a stream it says no more.

        broken_steps: so many throw, within OpenVINO.
        """
        set_pace(self.project.root, step_seconds, stall_after, broken_steps)

    def log_tail(self) -> str:
        """The end of what Triton wrote."""
        file = ServerFiles.of(self.project).log
        with suppress(FileNotFoundError):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(lines[-LOG_LINES:])
        return f"there is no {file}"


class Handle(ServerHandle[EmbeddedServer]):
    """A server of this environment, and what tests do to its processes."""

    kind = EmbeddedServer

    def start_again(self) -> None:
        """At the addresses it had, which clients know."""
        state = self.state
        ports = [f"server.grpc_port={state.grpc_port}", f"server.http_port={state.http_port}"]
        ports.append(f"server.readiness_port={json.dumps(state.readiness_port)}")
        self.wait_until_gone()
        given, self.project = self.project, load_project(self.project.root, overrides=ports)
        try:
            self._start()
        finally:
            self.project = given

    def stop(self) -> None:
        """By force: nobody waits for what a failed test has left under way."""
        self._find()
        if self._states:
            kill_and_remove_shm(self.state.shm_prefix)
        stop(self.project, Silent())

    def kill(self) -> None:
        """SIGKILL to tritonserver and its stubs; the supervisor tidies up."""
        self.spent = True
        os.killpg(server_pid(self.state), signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM to its supervisor: its streams end, then it does."""
        self.spent = True
        os.kill(self.state.pid, signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP to tritonserver and its stubs: sockets stay open, nobody answers."""
        self.spent = True
        os.killpg(server_pid(self.state), signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.killpg(server_pid(self.state), signal.SIGCONT)

    def wait_until_gone(self) -> None:
        """Until its supervisor has tidied up."""
        wait_until(lambda: not is_running(self.state), "the supervisor notices")

    def processes(self) -> list[int]:
        """tritonserver and its stubs."""
        group = os.getpgid(server_pid(self.state))
        pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if _group(pid) == group]


USED = pytest.StashKey[dict[int, ServerHandle[Any]]]()


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def paced_project(
    built: Project,
    folder: Path,
    *,
    model: dict[str, Any] | None = None,
    others: Mapping[str, dict[str, Any]] | None = None,
    **server: Any,
) -> Project:
    """The int8 speller in a folder of its own, with an engine whose pace tests set.

    built: the project that has the engine. model, server: fields on top of its own. others: the
    same speller again, by name, each with its fields; their engines are still to be built.
    """
    record = json.loads((built.root / "tritonctl.yaml").read_text())
    fields = {"int8": model or {}, **(others or {})}
    record["models"] = {name: record["models"]["int8"] | own for name, own in fields.items()}
    record["server"] |= server
    folder.mkdir(parents=True)
    (folder / "tritonctl.yaml").write_text(json.dumps(record))
    engine = Path("engines") / "int8"
    shutil.copytree(built.state / engine, folder / ".tritonctl" / engine)
    shutil.copytree(CHECKOUT / "python_backends", folder / "python_backends")
    set_pace(folder, 0.0)
    with (folder / "python_backends" / "openvinolib" / "pipeline.py").open("a") as file:
        file.write(PACED.format(file=os.fsencode(folder / PACE)))
    return load_project(folder)


def set_pace(
    folder: Path, step_seconds: float, stall_after: int = 0, broken_steps: int = 0
) -> None:
    """Of a paced project's engine; at once, also amid answers."""
    pace = {
        "step_seconds": step_seconds,
        "stall_after": stall_after,
        "broken_steps": broken_steps,
    }
    new = folder / f"{PACE}.new"  # an engine that reads it meanwhile sees the old one whole
    new.write_text(json.dumps(pace))
    new.replace(folder / PACE)

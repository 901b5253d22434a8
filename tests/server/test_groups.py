# SPDX-License-Identifier: Apache-2.0
"""Two releases side by side behind a real Envoy: users go to one, come back, and nothing is lost.

The engine replays one token, each release another: an answer tells who gave it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests import sample_tokenizers
from tests.server.replay import replay_project
from tests.server.test_reload import MODEL, NEW, OLD, write_version
from tests.servers import meanwhile, wait_until
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import RequestRejectedError, ServerError
from tritonctl.gateway.placement import gateway_of
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.generation import SamplingParameters, generation_request, read_chunk
from tritonctl.releases.publish import publish
from tritonctl.releases.store import StoredRelease, stored_releases
from tritonctl.rollout.traffic import Traffic
from tritonctl.runtimes import slot_servers
from tritonctl.runtimes.lifecycle import running_server, stop
from tritonctl.runtimes.release_switch import rollback, serve_release
from tritonctl.runtimes.server_state import EmbeddedServer
from tritonctl.runtimes.slot_servers import Slot, make_stable, start_candidate, stop_slot
from tritonctl.runtimes.staging_server import skip_smoke_test
from tritonctl.supervision.supervisor import child_processes, server_leftovers, server_processes

pytestmark = pytest.mark.server

USERS, TOKENS = 12, 10
ASK = SamplingParameters(max_tokens=TOKENS, random_seed=0)
HEADER = "x-user-id"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two releases, and users who have names."""
    tokenizer = sample_tokenizers.byte_level(tmp_path_factory.mktemp("tokenizer"))
    folder = tmp_path_factory.mktemp("groups") / "project"
    replay_project(folder, {MODEL: (tokenizer, [])})
    file = folder / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["rollout"] = {"user_header": HEADER}
    data["gateway"] = {"port": 0, "admin_port": 0}
    data["server"]["restart"] = True
    file.write_text(json.dumps(data), encoding="utf-8")
    project = load_project(file)
    for letter in (OLD, NEW):
        write_version(project.root, letter)
        build_engine(project, MODEL, Silent())
        publish(project, Silent(), partial(skip_smoke_test, reason="the test asks"))
    yield project
    stop(project, Silent())


@pytest.fixture
def releases(project: Project) -> list[StoredRelease]:
    """The first is served in slot a, alone, behind Envoy."""
    stop(project, Silent())
    (project.state / "stable").unlink(missing_ok=True)
    serve_release(project, "1", Silent())
    return stored_releases(project)


class Users:
    """They ask Envoy without a pause, each by name: what each was answered, and every error."""

    def __init__(self, project: Project, *, named: bool = True) -> None:
        self._named = named
        process = slot_servers.gateway_process(project)
        assert process is not None
        self._url = process.url
        self._done = threading.Event()
        self.answers: dict[str, list[str]] = {f"user-{number}": [] for number in range(USERS)}
        self.errors: Counter[str] = Counter()

    def _use(self, user: str) -> None:
        request = generation_request(MODEL, "x", ASK)
        with grpc.insecure_channel(self._url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while not self._done.is_set():
                try:
                    answers = stub.ModelStreamInfer(
                        iter([request]),
                        metadata=[(HEADER, user)] if self._named else [],
                        timeout=PATIENCE,
                    )
                    text = "".join(chunk.text for one in answers if (chunk := read_chunk(one)[0]))
                except grpc.RpcError as error:
                    self.errors[f"{error.code()}"] += 1
                    continue
                except RequestRejectedError as error:
                    self.errors[error.problem] += 1
                    time.sleep(0.2)  # as a user would
                    continue
                if len(text) != TOKENS or len({*text}) != 1:
                    self.errors[text] += 1
                self.answers[user].append(text[:1])

    def asking(self) -> AbstractContextManager[None]:
        """They come, and stay as long as the context."""
        threads = [threading.Thread(target=self._use, args=[user]) for user in self.answers]
        return meanwhile(threads, self._done)

    def next_answers(self) -> dict[str, str]:
        """What each is answered to a question that was not asked yet when this was called."""
        counts = {user: len(answers) + 2 for user, answers in self.answers.items()}
        deadline = time.monotonic() + PATIENCE
        while any(len(self.answers[user]) < count for user, count in counts.items()):
            assert time.monotonic() < deadline, f"{self.answers} {self.errors}"
            time.sleep(0.02)
        return {user: answers[-1] for user, answers in self.answers.items()}

    def all_get(self, *letters: str) -> bool:
        """All of these answers, and no others, are what users get from now on.

        Envoy reads its routes a moment after they were written, on a busy machine a longer one.
        """
        wait_until(lambda: {*self.next_answers().values()} == {*letters}, "users are moved")
        return {*self.next_answers().values()} == {*letters}


def traffic(project: Project) -> Traffic:
    """As a controller has it."""
    folder, place = slot_servers.routes_folder(project), slot_servers.gateway_placement(project)
    return Traffic(folder, gateway_of(project), place, project.rollout)


def test_users_go_and_come_back(project: Project, releases: list[StoredRelease]) -> None:
    """To a candidate and back, to it for good, back to what is warm: no request is lost."""
    before = running_server(project)
    users = Users(project)
    with users.asking():
        start_candidate(project, releases[1], Silent())
        assert users.all_get(OLD)
        moving = traffic(project)
        moving.move(50)
        assert users.all_get(OLD, NEW)
        half = users.next_answers()
        moving.move(75)
        more = users.next_answers()
        assert {user for user in half if half[user] == NEW} <= {
            user for user in more if more[user] == NEW
        }
        moving.roll_back()
        assert users.all_get(OLD)
        moving.move(100)
        assert users.all_get(NEW)
        make_stable(project, Slot.B)
        assert users.all_get(NEW)
        assert running_server(project).release == releases[1].name
        done = rollback(project, None, Silent())
        assert users.all_get(OLD)
        assert (running_server(project), done.restarted) == (before, None)
        stop_slot(project, Slot.B, at_once=False)
        assert users.all_get(OLD)
    assert users.errors == {}


@pytest.mark.exhaustive
def test_a_candidate_that_is_killed(project: Project, releases: list[StoredRelease]) -> None:
    """By us, its live streams break and nothing else does; by others, it comes back."""
    candidate = start_candidate(project, releases[1], Silent())
    assert isinstance(candidate, EmbeddedServer)
    moving, users = traffic(project), Users(project)
    moving.move(50)
    with users.asking():
        assert users.all_get(OLD, NEW)
        moved = [user for user, letter in users.next_answers().items() if letter == NEW]
        for pid in server_processes(candidate.shm_prefix):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: users.errors, "somebody notices")
        wait_until(lambda: {*users.next_answers().values()} == {OLD}, "stable has all")
        wait_until(lambda: {*users.next_answers().values()} == {OLD, NEW}, "it is back")
        broken = sum(users.errors.values())
        moving.roll_back()
        stop_slot(project, Slot.B, at_once=True)
        assert users.all_get(OLD)
    assert sum(users.errors.values()) <= broken + len(moved)
    assert server_leftovers(candidate.shm_prefix) == []


@pytest.mark.exhaustive
def test_envoy_is_killed(project: Project, releases: list[StoredRelease]) -> None:
    """It comes back with the same users in the same place."""
    start_candidate(project, releases[1], Silent())
    traffic(project).move(50)
    users = Users(project)
    process = slot_servers.gateway_process(project)
    assert process is not None
    with users.asking():
        assert users.all_get(OLD, NEW)
        before = users.next_answers()
        [envoy] = child_processes(process.pid)
        os.kill(envoy, signal.SIGKILL)
        wait_until(lambda: users.errors, "somebody notices")
        assert users.next_answers() == before
    assert slot_servers.gateway_process(project) == process


@pytest.mark.exhaustive
def test_the_machine_is_reset_amid_a_rollout(
    project: Project, releases: list[StoredRelease]
) -> None:
    """Nobody is left with a release that nobody judges, whichever slot was to be stable."""
    candidate = start_candidate(project, releases[1], Silent())
    traffic(project).move(50)
    _pull_the_plug(project, candidate)
    serve_release(project, "1", Silent())
    assert traffic(project).share() == 0
    users = Users(project)
    with users.asking():
        assert {*users.next_answers().values()} == {OLD}
    assert users.errors == {}
    start_candidate(project, releases[1], Silent())
    traffic(project).move(100)
    make_stable(project, Slot.B)
    _pull_the_plug(project, running_server(project))
    serve_release(project, "2", Silent())
    users = Users(project)
    with users.asking():
        assert {*users.next_answers().values()} == {NEW}
    assert users.errors == {}


@pytest.mark.exhaustive
def test_a_candidate_that_does_not_load(project: Project, releases: list[StoredRelease]) -> None:
    """Told, with Triton's reason; the slot is free, and no user has noticed."""
    code = project.root / "python_backends" / "replay_engine" / "model.py"
    sound = code.read_text(encoding="utf-8")
    code.write_text(sound + "\nraise RuntimeError('broken')\n", encoding="utf-8")
    try:
        publish(project, Silent(), partial(skip_smoke_test, reason="the test asks"))
    finally:
        code.write_text(sound, encoding="utf-8")
    users = Users(project)
    with users.asking():
        with pytest.raises(ServerError, match="broken"):
            start_candidate(project, stored_releases(project)[-1], Silent())
        assert slot_servers.server_in_slot(project, Slot.B) is None
        start_candidate(project, releases[1], Silent())
        assert {*users.next_answers().values()} == {OLD}
    assert users.errors == {}


def _pull_the_plug(project: Project, *servers: object) -> None:
    """As a reset does: no process of the project is left, and none has tidied up."""
    process = slot_servers.gateway_process(project)
    assert process is not None
    found = [
        server
        for slot in Slot
        if (server := slot_servers.server_in_slot(project, slot)) is not None
    ]
    envoys = child_processes(process.pid)
    for pid in (process.pid, *envoys, *(server.pid for server in found)):
        os.kill(pid, signal.SIGKILL)
    for server in found:
        assert isinstance(server, EmbeddedServer)
        for pid in server_processes(server.shm_prefix):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(partial(_is_gone, server.shm_prefix), "Triton is gone")
    wait_until(lambda: not any(map(process_start_time, envoys)), "Envoy is gone")


def _is_gone(prefix: str) -> bool:
    return not server_processes(prefix)

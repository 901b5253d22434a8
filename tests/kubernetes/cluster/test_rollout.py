# SPDX-License-Identifier: Apache-2.0
"""A rollout on a real cluster: users move and come back, whatever dies; upgrades move nobody."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.docker.deployments import succeeded
from tests.kubernetes.cluster.installation import NAME, Installation
from tests.kubernetes.cluster.machines import wait_until
from tests.kubernetes.cluster.test_drains import Tell
from tests.kubernetes.cluster.test_faults import SERVER, SIGNAL
from tritonctl.errors import TritonctlError, UsageError
from tritonctl.project.file import load_project
from tritonctl.rollout import operator_commands as asks
from tritonctl.rollout.journal import RolloutPhase, RolloutState
from tritonctl.rollout.operator_commands import OperatorCommand
from tritonctl.rollout.status import RolloutStatus, rollout_status

pytestmark = pytest.mark.kubernetes

USERS = 12
HEADER = "x-user-id"
POLICY = ("steps=[50,100]", "hold_seconds=600", "warm_up_seconds=5", "keep_warm_seconds=120")
ROLLBACK_SECONDS = 30.0
CLOSED_SECONDS = 120.0  # its pods drain


@dataclass
class Asking:
    """What users got: time and release of each answer, by user."""

    answers: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def releases(self, since: float) -> set[str]:
        """Of answers that were asked for later than that."""
        return {
            release for answers in self.answers.values() for at, release in answers if at >= since
        }


@contextmanager
def users(served: Installation) -> Iterator[Asking]:
    """Each asks four short texts a second, or fewer."""
    asking, stop = Asking(), threading.Event()

    def ask(address: str, user: int) -> None:
        answers = asking.answers.setdefault(user, [])
        more: dict[str, Any] = {
            "headers": {HEADER: f"user-{user}"},
            "resume_on": [address],
            "max_resumes": 30,
        }
        with served.client(address, **more) as client:
            while not stop.wait(0.25):
                at = time.monotonic()
                try:
                    [*_, last] = client.stream("speller", f"{user} in English:")
                except TritonctlError as error:
                    asking.problems.append(error.problem)
                else:
                    answers.append((at, last.model_version))

    with served.gateway() as address:
        threads = [threading.Thread(target=ask, args=(address, user)) for user in range(USERS)]
        for thread in threads:
            thread.start()
        try:
            yield asking
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.fixture
def slots(
    installation: Installation, project: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Installation]:
    """Behind a gateway that knows slot b; slot a serves. No rollout is left under way."""
    for name, value in installation.cluster.environment().items():
        monkeypatch.setenv(name, value)
    chart = project / "deploy" / "two-slots"
    if not chart.is_dir():
        setting = f"rollout.user_header={HEADER}"
        wanted = ("--release", "1", "--output", str(chart), "--set", setting)
        succeeded(project, "deploy", "kubernetes", *wanted)
    installation.have(chart=chart)
    yield installation
    with suppress(UsageError):  # none was started
        if not (left := standing(project)).state.closed:
            asks.submit_command(left.folder, OperatorCommand.ABORT_AT_ONCE)
            wait_until(lambda: standing(project).state.closed, CLOSED_SECONDS)


def start(project: Path, served: Installation) -> tuple[str, str]:
    """The other release beside that which serves, to half of the users; both, stable first."""
    stable = served.release
    [candidate] = {"1", "2"} - {stable}
    settings = [f"rollout.user_header={HEADER}", *(f"rollout.{each}" for each in POLICY)]
    given = [word for each in settings for word in ("--set", each)]
    where = ["--on", "kubernetes", "--namespace", served.namespace, "--release-name", NAME]
    succeeded(project, "rollout", "start", candidate, *where, *given)
    until(project, lambda state: state.step == 0 and state.moved)
    assert standing(project).state.details["memory"]  # pods of both tell theirs: it is judged
    return stable, candidate


def standing(project: Path) -> RolloutStatus:
    """Of the last one."""
    return rollout_status(load_project(project))


def until(project: Path, holds: Callable[[RolloutState], bool]) -> RolloutState:
    """Wait for it of one state: two reads would mix a step with the rollback after it."""
    read: list[RolloutState] = []

    def condition() -> bool:
        read.append(standing(project).state)
        return holds(read[-1])

    wait_until(condition, 60)
    return read[-1]


def generations(served: Installation) -> dict[str, Any]:
    """What every Deployment is at: it counts each change of a spec."""
    found = served.cluster.read(served.namespace, "deployments")["items"]
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}


def test_users_come_back_whatever_dies(slots: Installation, project: Path, tell: Tell) -> None:
    """The controller: another one goes on. The candidate's server: all are at stable again."""
    with users(slots) as asking:
        stable, candidate = start(project, slots)
        since = time.monotonic()
        wait_until(lambda: asking.releases(since) == {stable, candidate}, 30)
        before = generations(slots)
        slots.helm("upgrade")
        assert generations(slots) == before
        first = standing(project).controller
        assert first is not None
        os.kill(int(first), signal.SIGKILL)
        wait_until(lambda: standing(project).controller not in (None, first), 60)
        wait_until(lambda: asking.releases(time.monotonic() - 2) == {stable, candidate}, 30)
        [pod] = slots.pods("triton-b")
        began = time.monotonic()
        slots.python(pod["metadata"]["name"], SIGNAL.format(name=SERVER, signal="SIGKILL"))
        state = until(project, lambda state: state.moved and state.is_over)
        back = time.monotonic()
        time.sleep(3)
    tell(f"candidate killed: users back after {back - began:.1f} s ({state.reason})")
    assert state.phase is RolloutPhase.ROLLED_BACK
    assert back - began < ROLLBACK_SECONDS
    assert asking.releases(back) == {stable}
    assert asking.problems == []
    wait_until(lambda: standing(project).state.closed, CLOSED_SECONDS)


def test_what_is_promoted_stays(slots: Installation, project: Path) -> None:
    """Only the routes say which slot it is: an upgrade changes nothing; an abort leads back."""
    with users(slots) as asking:
        stable, candidate = start(project, slots)
        succeeded(project, "rollout", "promote")
        promoted = time.monotonic()
        time.sleep(2)
        before = generations(slots)
        slots.helm("upgrade")
        time.sleep(3)
        assert generations(slots) == before
        assert asking.releases(promoted) == {candidate}
        succeeded(project, "rollout", "abort")
        back = time.monotonic()
        time.sleep(2)
    assert asking.releases(back) == {stable}
    assert asking.problems == []
    ended = standing(project)
    assert ended.state.phase is RolloutPhase.ROLLED_BACK
    asks.submit_command(ended.folder, OperatorCommand.CLOSE)  # as the next start does
    wait_until(lambda: standing(project).state.closed, CLOSED_SECONDS)

# SPDX-License-Identifier: Apache-2.0
"""Faults on a real cluster: what dies, what is wrong, what stands still."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.kubernetes.cluster.installation import PAIRS, Installation, Values
from tests.kubernetes.cluster.machines import wait_until
from tests.kubernetes.cluster.test_drains import ANSWER, PROMPT, release_of

pytestmark = pytest.mark.kubernetes

CLIENTS = 8
Tell = Callable[[str], None]
SIGNAL = """
import contextlib, os, pathlib, signal
for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if comm.read_text().strip().startswith({name!r}):
            os.kill(int(comm.parent.name), signal.{signal})
"""
SERVER, STUB = "tritonserver", "triton_python_b"


def answer(served: Installation) -> str:
    """What a client gets through Envoy."""
    with served.gateway() as address, served.client(address) as client:
        return client.generate("speller", PROMPT).text


@pytest.mark.parametrize("name", [SERVER, STUB], ids=["server", "stub"])
def test_what_is_killed_comes_back(pairs: Installation, tell: Tell, name: str) -> None:
    """SIGKILL in one of two pods: clients that may resume get whole texts; a restart is counted."""
    # A kubelet waits ten seconds before it starts again what it has just started again.
    pod = min(pairs.names("triton"), key=pairs.restarts().__getitem__)
    before = pairs.restarts()[pod]
    with pairs.streams(CLIENTS, resuming=True) as counted:
        began = time.monotonic()
        assert pairs.python(pod, SIGNAL.format(name=name, signal="SIGKILL")).returncode in (0, 137)
        wait_until(lambda: pairs.restarts()[pod] > before, 120)
        pairs.until_ready()
        seconds = time.monotonic() - began
    # More than one where the machine is so busy that Triton loses a lock of its own.
    restarts = pairs.restarts()[pod] - before
    tell(f"SIGKILL of {name}: ready after {seconds:.0f} s, {restarts} restarts, {counted}")
    assert (counted.lost, counted.refused) == ([], [])
    assert answer(pairs) == ANSWER


def test_a_bad_release_takes_nothing_down(pairs: Installation, project: Path, tell: Tell) -> None:
    """The pods before it serve on, its own says what is wrong, `helm rollback` ends it."""
    name, _, digest = release_of(project, "2").partition("@sha256:")
    wrong: dict[str, tuple[Values, str]] = {
        "image": ({"images": {"triton": "tritonctl/triton-cpu:absent"}}, "ErrImagePull"),
        "digest": ({"release": f"{name}@sha256:{'0' * len(digest)}"}, "another release"),
        "release": ({"release": f"9-000000000000@sha256:{digest}"}, "there is no release"),
    }
    before = set(pairs.names("triton"))
    revision = pairs.revision
    with pairs.streams(CLIENTS) as counted:
        try:
            for what, (values, words) in wrong.items():
                began = time.monotonic()
                pairs.helm("upgrade", {**PAIRS, **values})
                wait_until(partial(says, pairs, before, words), 120)
                tell(f"a wrong {what}: told after {time.monotonic() - began:.0f} s")
        finally:
            began = time.monotonic()
            pairs.rollback(revision)
        pairs.until_ready()
        seconds = time.monotonic() - began
    tell(f"rolled back in {seconds:.0f} s, {counted}")
    assert (counted.lost, counted.refused) == ([], [])
    assert set(pairs.names("triton")) == before


def says(served: Installation, before: set[str], words: str) -> bool:
    """Whether a new pod of Triton does."""
    return words in said(served, before)


def said(served: Installation, before: set[str]) -> str:
    """What new pods of Triton say: why they wait, an init container's last words."""
    words = []
    for pod in served.pods("triton"):
        if pod["metadata"]["name"] not in before:
            status = pod["status"]
            for each in [
                *status.get("initContainerStatuses", []),
                *status.get("containerStatuses", []),
            ]:
                words += [str(each["state"]), str(each["lastState"])]
    return " ".join(words)


def test_a_server_that_stands_still_is_not_restarted(pairs: Installation, tell: Tell) -> None:
    """For some seconds: it is no longer ready, nothing restarts it, it is ready again."""
    pod = pairs.names("triton")[0]
    before = pairs.restarts()[pod]
    began = time.monotonic()
    assert pairs.python(pod, SIGNAL.format(name=SERVER, signal="SIGSTOP")).returncode == 0
    try:
        wait_until(lambda: not ready(pairs, pod), 60)
        unready = time.monotonic() - began
    finally:
        assert pairs.python(pod, SIGNAL.format(name=SERVER, signal="SIGCONT")).returncode == 0
    began = time.monotonic()
    wait_until(lambda: ready(pairs, pod), 60)
    tell(f"stopped: not ready after {unready:.0f} s, ready {time.monotonic() - began:.0f} s after")
    # But for a lock that Triton loses of itself: failure-behaviour.md.
    lost_lock = "lock_exception" in said(pairs, set())
    assert pairs.restarts()[pod] == before or lost_lock
    wait_until(lambda: answer(pairs) == ANSWER, 30)


def ready(served: Installation, name: str) -> bool:
    """Whether the kubelet calls a pod ready."""
    [pod] = [each for each in served.pods() if each["metadata"]["name"] == name]
    conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
    return bool(conditions["Ready"] == "True")

# SPDX-License-Identifier: Apache-2.0
"""What is done to pods while they serve: a model loaded anew, a Secret renewed, a wish to write."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.kubernetes.cluster.installation import NAME, Installation
from tests.kubernetes.cluster.machines import wait_until
from tests.kubernetes.cluster.test_drains import ANSWER, PROMPT, Tell
from tests.kubernetes.cluster.test_faults import CLIENTS, STUB, answer, ready
from tritonctl.errors import TritonctlError, UsageError
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.model_config import steps_of
from tritonctl.protocol.model_control import ModelControl
from tritonctl.security.certificates import make_certificates

pytestmark = pytest.mark.kubernetes

GRPC, HTTP, READINESS = 8001, 8000, 8003
LOOK_SECONDS = 0.1
CONNECTIONS = 6
STUBS = f"""
import pathlib
for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
    if comm.read_text().strip() == {STUB!r}:
        print(comm.parent.name)
"""


@dataclass
class Probed:
    """How often each answered, and for how long readiness did not say yes, in seconds."""

    live: list[bool] = field(default_factory=list)
    ready: list[bool] = field(default_factory=list)

    @property
    def longest_unready(self) -> float:
        """At a stretch."""
        longest = stretch = 0
        for each in self.ready:
            stretch = 0 if each else stretch + 1
            longest = max(longest, stretch)
        return longest * LOOK_SECONDS


@contextmanager
def probing(served: Installation, pod: str) -> Iterator[Probed]:
    """Both of the kubelet's questions, ten times a second; it gives each five seconds or more."""
    probed, stop = Probed(), threading.Event()

    def ask(address: str, path: str, answers: list[bool]) -> None:
        host, _, port = address.rpartition(":")
        while not stop.wait(LOOK_SECONDS):
            yes = False
            with (
                suppress(OSError, http.client.HTTPException),
                closing(http.client.HTTPConnection(host, int(port), timeout=5)) as connection,
            ):
                connection.request("GET", path)
                yes = connection.getresponse().status == 200
            answers.append(yes)

    with ExitStack() as stack:
        threads = []
        for port, kind, answers in (
            (HTTP, "live", probed.live), (READINESS, "ready", probed.ready),
        ):  # fmt: skip
            address = stack.enter_context(served.cluster.reaching(address_of(served, pod), port))
            asked = (address, f"/v2/health/{kind}", answers)
            threads.append(threading.Thread(target=ask, args=asked))
        for thread in threads:
            thread.start()
        try:
            yield probed
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def address_of(served: Installation, name: str) -> str:
    """A pod's own."""
    [pod] = [each for each in served.pods() if each["metadata"]["name"] == name]
    return str(pod["status"]["podIP"])


def stubs_of(served: Installation, pod: str) -> set[str]:
    """The processes of Python models in a pod."""
    return set(served.python(pod, STUBS).stdout.split())


def test_models_are_loaded_anew(pairs: Installation, tell: Tell) -> None:
    """All of one server, unloaded before: it is not ready meanwhile, but lives, and goes on."""
    pod = pairs.names("triton")[0]
    before = pairs.restarts()[pod]
    stubs = stubs_of(pairs, pod)
    token = (pairs.project / "keys" / "token").read_text(encoding="ascii")
    with ExitStack() as stack:
        address = stack.enter_context(pairs.cluster.reaching(address_of(pairs, pod), GRPC))
        control = stack.enter_context(ModelControl(Endpoint(address, token=token)))
        probed = stack.enter_context(probing(pairs, pod))
        began = time.monotonic()
        steps = steps_of(control.config("speller"))
        for model in ("speller", *steps):
            control.unload(model)
        for model in (*steps, "speller"):
            control.load(model)
        seconds = time.monotonic() - began
        control.wait_until_ready([*steps, "speller"])
        wait_until(lambda: probed.ready[-1] and ready(pairs, pod), 60)
    tell(
        f"models loaded anew in {seconds:.1f} s: live {sum(probed.live)} of {len(probed.live)} "
        f"times, not ready for {probed.longest_unready:.1f} s at a stretch"
    )
    assert all(probed.live)
    assert not all(probed.ready)
    assert pairs.restarts()[pod] == before
    assert len(stubs - stubs_of(pairs, pod)) >= len(steps)
    assert answer(pairs) == ANSWER


def test_a_secret_is_renewed_under_streams(pairs: Installation, tell: Tell) -> None:
    """A certificate and a key: pods see both, Envoy takes both, connections go on."""
    folder = pairs.project
    old_key, new_key = folder / "keys" / "bob.old", folder / "keys" / "bob"
    old_key.write_text(new_key.read_text(encoding="ascii"), encoding="ascii")
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(pairs.cluster.reaching(pod["status"]["podIP"], gateway_port(pairs)))
            for pod in pairs.pods("gateway")
        ]
        assert all(answers(pairs, each, "bob") for each in gateways)
        counted = stack.enter_context(pairs.streams(CLIENTS))
        restarts = pairs.restarts()
        make_certificates(folder / "certs", force=True)
        certificate = (folder / "certs" / "server.crt").read_text(encoding="ascii")
        new_key.write_text("another one", encoding="ascii")
        began = time.monotonic()
        pairs.bring_secret()
        pod = pairs.names("triton")[0]
        mounted = "print(open('/run/secrets/gateway_tls_certificate').read(), end='')"
        wait_until(lambda: pairs.python(pod, mounted).stdout == certificate, 120)
        seen = time.monotonic() - began
        for gateway in gateways:
            wait_until(partial(shows, pairs, gateway, certificate), 120)
        shown = time.monotonic() - began
        for gateway in gateways:
            wait_until(partial(answers, pairs, gateway, "bob"), 30)
        taken = time.monotonic() - began
        for gateway in gateways:
            wait_until(partial(refuses, pairs, gateway, "bob.old"), 30)
        assert pairs.restarts() == restarts
    tell(
        f"a Secret: seen by a pod after {seen:.0f} s, its certificate shown by every Envoy after "
        f"{shown:.0f} s, its key taken after {taken:.0f} s, {counted}"
    )
    assert (counted.lost, counted.refused) == ([], [])


def gateway_port(served: Installation) -> int:
    """Of Envoy's pods: the chart's Service has the same."""
    port: int = served.cluster.read(served.namespace, "services", NAME)["spec"]["ports"][0]["port"]
    return port


def shows(served: Installation, address: str, certificate: str) -> bool:
    """Whether who connects now is shown this certificate."""
    return served.certificate(address).strip() == certificate.strip()


def answers(served: Installation, address: str, key: str) -> bool:
    """Whether a tenant gets what it asks."""
    try:
        with served.client(address, key) as client:
            return client.generate("speller", PROMPT).text == ANSWER
    except TritonctlError:
        return False


def refuses(served: Installation, address: str, key: str) -> bool:
    """Whether nobody gets anything for it, on whichever of Envoy's threads."""
    for _ in range(CONNECTIONS):
        with served.client(address, key) as client:
            try:
                client.generate("speller", PROMPT)
            except UsageError as error:
                if "no such API key" not in error.problem:
                    raise
            else:
                return False
    return True


def test_a_pod_may_not_write(pairs: Installation) -> None:
    """Nor anything else: no root, no capability, no token of the cluster; /tmp alone is its own."""
    for part, places in {
        "triton": ("/models/new", "/new", "/opt/new", "/etc/new", "/run/secrets/new"),
        "gateway": ("/new", "/etc/envoy/new", "/run/secrets/new"),
        "frontend": ("/new", "/models/new", "/etc/frontend/new", "/run/secrets/new"),
    }.items():
        pod = pairs.names(part)[0]
        status = pairs.execute(pod, "cat", "/proc/1/status").stdout
        for line in ("CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Uid:\t1000"):
            assert line in status, part
        for place in places:
            told = pairs.execute(pod, "touch", place).stderr
            assert "Read-only file system" in told, (part, place, told)
        assert pairs.execute(pod, "touch", "/tmp/new").returncode == 0, part  # noqa: S108
        assert pairs.execute(pod, "ls", "/run/secrets/kubernetes.io").returncode != 0, part

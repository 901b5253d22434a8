# SPDX-License-Identifier: Apache-2.0
"""The chart as Helm has installed it, and clients that count what they get through its Envoy."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.cluster.machines import wait_until
from tests.kubernetes.cluster.running import Cluster
from tritonctl.errors import TritonctlError
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters

NAME = "demo"
READY_SECONDS = 180.0
TOKENS = 400
LONG = SamplingParameters(max_tokens=TOKENS, min_tokens=TOKENS)
Values = Mapping[str, Any]
SMALL: Values = {
    # One machine has two cores: what pods ask for has to fit.
    "triton": {"cpu": "50m"},
    "gateway": {"cpu": "20m", "replicas": 1},
    "frontend": {"cpu": "20m", "replicas": 1},
    # A kubelet of 1.20 at times tells that a pod has ended only when its grace period is over.
    "drain": {"streamsSeconds": 30, "marginSeconds": 11},
}
PAIRS: Values = {part: {"replicas": 2} for part in ("triton", "gateway", "frontend")}
SECRETS = {  # of the project, by the names of the chart
    "gateway_tls_certificate": "certs/server.crt",
    "gateway_tls_key": "certs/server.key",
    "gateway_api_key_alice": "keys/alice",
    "gateway_api_key_bob": "keys/bob",
    "triton_token": "keys/token",
}


@dataclass
class Counted:
    """Streams: `whole` have every token, `lost` had begun and broke, `refused` never began."""

    whole: int = 0
    resumed: int = 0
    lost: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    longest_gap: float = 0.0  # seconds between two chunks of a stream
    releases: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"{self.whole} streams whole ({self.whole * TOKENS} tokens), {self.resumed} resumed, "
            f"{len(self.lost)} lost, {len(self.refused)} refused, longest gap "
            f"{self.longest_gap:.1f} s"
        )


def has_ended(pod: dict[str, Any]) -> bool:
    """Whether it was to end, and no container of it runs any more, or ever did."""
    kinds = ("initContainerStatuses", "containerStatuses")
    containers = [each for kind in kinds for each in pod["status"].get(kind, [])]
    return "deletionTimestamp" in pod["metadata"] and not any(
        "running" in each["state"] for each in containers
    )


class Installation:
    """One, in a namespace of its own; `project` has its certificates and keys."""

    def __init__(self, cluster: Cluster, namespace: str, project: Path, chart: Path) -> None:
        self.cluster, self.namespace, self.project = cluster, namespace, project
        self.chart = chart
        self.before: set[str] = set()  # what the namespace had
        self._given: dict[int, dict[str, Any]] = {}  # values that Helm got, by revision
        self.revision = 0  # of them that is installed; 0: none

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """In the namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, given=given)

    def helm(self, action: str, values: Values | None = None, **more: Any) -> Any:
        """`install` or `upgrade` of the chart, with values over SMALL; the release stays."""
        wanted = self._wanted(values)
        asked = {"chart": str(self.chart), "name": NAME, "values": wanted, **more}
        done = self.cluster.helm(self.namespace, action, **asked)
        if "dry_run" not in more:
            self.revision += 1
            self._given[self.revision] = wanted
        return done

    def rollback(self, revision: int) -> None:
        """`helm rollback` to one."""
        self.cluster.helm(self.namespace, "rollback", name=NAME, version=revision)
        self._given[self.revision + 1] = self._given[revision]
        self.revision += 1

    def uninstall(self) -> None:
        """`helm uninstall`."""
        self.cluster.helm(self.namespace, "uninstall", name=NAME, ignore_not_found=True)
        self.revision = 0
        self._given.clear()

    def have(self, values: Values | None = None, chart: Path | None = None) -> None:
        """With these values and of this chart, every pod ready."""
        has = (self.chart, self._given.get(self.revision))
        self.chart = chart or self.chart
        if has != (self.chart, self._wanted(values)):
            self.helm("upgrade" if self.revision else "install", values)
        self.until_ready()

    def _wanted(self, values: Values | None) -> dict[str, Any]:
        wanted = {name: dict(each) for name, each in SMALL.items()}
        if "release" in (now := self._given.get(self.revision, {})):
            wanted["release"] = now["release"]
        for name, each in (values or {}).items():
            wanted[name] = wanted.get(name, {}) | each if isinstance(each, dict) else each
        return wanted

    @property
    def release(self) -> str:
        """The number of that which was installed last."""
        given = yaml.safe_load((self.chart / "values.yaml").read_text(encoding="utf-8"))
        name: str = {**given, **self._given[self.revision]}["release"]
        return name.partition("-")[0]

    def until_ready(self) -> float:
        """Seconds until every Deployment has what it wants, and nothing else is left."""
        began = time.monotonic()
        wait_until(self._settled, READY_SECONDS, lambda: self.kubectl("get", "pods", "-o", "wide"))
        return time.monotonic() - began

    def _settled(self) -> bool:
        deployments = self.cluster.read(self.namespace, "deployments")["items"]
        return all(
            each["status"].get("observedGeneration") == each["metadata"]["generation"]
            and each["status"].get("updatedReplicas", 0) == each["spec"]["replicas"]
            and each["status"].get("readyReplicas", 0) == each["spec"]["replicas"]
            and each["status"].get("replicas", 0) == each["spec"]["replicas"]
            for each in deployments
        ) and len(self.pods()) == sum(each["spec"]["replicas"] for each in deployments)

    def pods(self, component: str | None = None) -> list[dict[str, Any]]:
        """All of them, also those that end; not those that have ended.

        A kubelet of 1.20 tells some of these only when it next collects its garbage: every minute.
        """
        labels = f"app.kubernetes.io/instance={NAME}"
        if component:
            labels += f",app.kubernetes.io/component={component}"
        found = self.cluster.read(self.namespace, "pods", labelSelector=labels)
        return [pod for pod in found["items"] if not has_ended(pod)]

    def names(self, component: str | None = None) -> list[str]:
        """Of those pods."""
        return [pod["metadata"]["name"] for pod in self.pods(component)]

    def everything(self) -> set[str]:
        """Every object of the namespace, of whatever kind the API has, by kind and name."""
        found = self.kubectl("get", ",".join(self.kinds()), "--output=name", "--ignore-not-found")
        return set(found.split())

    def kinds(self, *, namespaced: bool = True) -> list[str]:
        """What can be listed, but for the cluster's diary."""
        asked = ("--verbs=list", f"--namespaced={str(namespaced).lower()}", "--output=name")
        found = self.cluster.kubectl("api-resources", *asked).split()
        return [kind for kind in found if not kind.startswith("events")]

    def restarts(self) -> dict[str, int]:
        """Of every pod's container."""
        return {
            pod["metadata"]["name"]: status["restartCount"]
            for pod in self.pods()
            for status in pod["status"]["containerStatuses"]
        }

    def drain(self, node: str) -> str:
        """`kubectl drain` of a node, of our pods; what it says. Raises RuntimeError with that."""
        # It speaks of other people's pods, too, where the cluster is kept for several.
        ours = f"--pod-selector=app.kubernetes.io/instance={NAME}"
        done = self.cluster.asked(
            "drain", node, ours, "--delete-emptydir-data", "--timeout=240s", seconds=300
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return done.stdout + done.stderr

    def execute(self, pod: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program in a pod's container."""
        return self.cluster.asked("--namespace", self.namespace, "exec", pod, "--", *command)

    def python(self, pod: str, source: str) -> subprocess.CompletedProcess[str]:
        """A program of Python's."""
        return self.execute(pod, "python3", "-c", source)

    def bring_secret(self) -> None:
        """The project's certificates and keys as they are now, as the Secret that pods mount."""
        content = {
            name: base64.b64encode((self.project / file).read_bytes()).decode()
            for name, file in SECRETS.items()
        }
        named = yaml.safe_load((self.chart / "values.yaml").read_text(encoding="utf-8"))
        record = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": named["secrets"]["name"]},
            "data": content,
        }
        self.kubectl("apply", "--filename=-", given=json.dumps(record))

    @contextmanager
    def gateway(self) -> Iterator[str]:
        """Where its Service is reached."""
        service = self.cluster.read(self.namespace, "services", NAME)["spec"]
        port = service["ports"][0]["port"]
        with self.cluster.reaching(service["clusterIP"], port) as address:
            yield address

    @property
    def authority(self) -> Path:
        """That has signed Envoy's certificate."""
        return self.project / "certs" / "ca.crt"

    def client(self, address: str, key: str = "alice", **more: Any) -> TritonClient:
        """Of a tenant; `key`: the name of its file."""
        key_of = ApiKey(self.project / "keys" / key)
        return TritonClient(address, tls=ClientTls(self.authority), api_key=key_of, **more)

    def certificate(self, address: str) -> str:
        """That is shown at an address, as PEM."""
        host, _, port = address.rpartition(":")
        return ssl.get_server_certificate((host, int(port)))

    @contextmanager
    def streams(self, clients: int, *, resuming: bool = False) -> Iterator[Counted]:
        """Clients that ask one long text after the other meanwhile; all have begun when it yields.

        Their last streams have ended when it is left.
        """
        counted, stop, lock = Counted(), threading.Event(), threading.Lock()
        begun = [threading.Event() for _ in range(clients)]
        with self.gateway() as address:
            threads = [
                threading.Thread(
                    target=self._ask,
                    args=(address, number, resuming, counted, stop, lock, begun[number]),
                )
                for number in range(clients)
            ]
            for thread in threads:
                thread.start()
            try:
                wait_until(
                    lambda: all(each.is_set() for each in begun), READY_SECONDS, counted.__str__
                )
                yield counted
            finally:
                stop.set()
                for thread in threads:
                    thread.join()

    def _ask(
        self,
        address: str,
        number: int,
        resuming: bool,
        counted: Counted,
        stop: threading.Event,
        lock: threading.Lock,
        begun: threading.Event,
    ) -> None:
        more: dict[str, Any] = {"resume_on": [address], "max_resumes": 30} if resuming else {}
        with self.client(address, **more) as client:
            while not stop.is_set():
                tokens = resumes = 0
                release, gap, last = "", 0.0, time.monotonic()
                problem = ""
                try:
                    for chunk in client.stream("speller", f"{7000 + number} in English:", LONG):
                        now = time.monotonic()
                        gap, last = max(gap, now - last if tokens else 0.0), now
                        tokens, resumes = chunk.num_output_tokens, chunk.resumes
                        release = chunk.model_version
                        begun.set()
                except TritonctlError as error:
                    problem = error.problem
                    time.sleep(0.2)
                with lock:
                    counted.longest_gap = max(counted.longest_gap, gap)
                    if not problem and tokens == TOKENS:
                        counted.whole += 1
                        counted.resumed += resumes > 0
                        counted.releases.add(release)
                    elif tokens:
                        counted.lost.append(f"after {tokens} tokens: {problem}")
                    else:
                        counted.refused.append(problem)

    def remove(self, *, wait: bool = True) -> None:
        """And the namespace, which has nothing else. wait: until it is gone."""
        self.uninstall()
        # A kubelet of 1.20 at times tells that a pod has ended when its grace period is over.
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        for kind, name in (("namespace", self.namespace), ("persistentvolume", self.namespace)):
            how = ("--ignore-not-found", f"--wait={str(wait).lower()}")
            self.cluster.kubectl("delete", kind, name, *how, seconds=300)

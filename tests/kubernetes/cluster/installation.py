# SPDX-License-Identifier: Apache-2.0
"""The chart as Helm has installed it, and clients that count what they get through its Envoy."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.cluster.running import Cluster, wait_until
from tritonctl.errors import TritonctlError
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters

NAME = "demo"
READY_SECONDS = 180.0
TOKENS = 400
LONG = SamplingParameters(max_tokens=TOKENS, min_tokens=TOKENS)
# One machine has two cores: what pods ask for has to fit.
SMALL: Mapping[str, Any] = {
    "triton": {"cpu": "50m"},
    "gateway": {"cpu": "20m", "replicas": 1},
    "frontend": {"cpu": "20m", "replicas": 1},
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


class Installation:
    """One, in a namespace of its own."""

    def __init__(self, cluster: Cluster, namespace: str, chart: Path) -> None:
        self.cluster, self.namespace, self.chart = cluster, namespace, chart
        self.values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))

    def kubectl(self, *arguments: str) -> str:
        """In the namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments)

    def helm(self, action: str, values: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """`install` or `upgrade` of the chart, with values over SMALL."""
        merged = {name: dict(each) for name, each in SMALL.items()}
        for name, each in (values or {}).items():
            merged[name] = merged.get(name, {}) | each if isinstance(each, dict) else each
        asked = {"chart": str(self.chart), "name": NAME, "values": merged, **more}
        return self.cluster.helm(self.namespace, action, **asked)

    def restore(self) -> None:
        """The first release, one pod of each kind, all ready."""
        installed = self.cluster.helm(self.namespace, "list")
        if installed["releases"] if isinstance(installed, dict) else installed:
            self.helm("upgrade")
        else:
            self.helm("install", create_namespace=True)
        self.until_ready()

    def until_ready(self) -> float:
        """Seconds until every Deployment has what it wants, and nothing else is left."""
        began = time.monotonic()
        wait_until(self._settled, READY_SECONDS, lambda: self.kubectl("get", "pods"))
        return time.monotonic() - began

    def _settled(self) -> bool:
        deployments = self.cluster.read("deployments", "--namespace", self.namespace)["items"]
        return all(
            each["status"].get("observedGeneration") == each["metadata"]["generation"]
            and each["status"].get("updatedReplicas") == each["spec"]["replicas"]
            and each["status"].get("readyReplicas") == each["spec"]["replicas"]
            and each["status"].get("replicas") == each["spec"]["replicas"]
            for each in deployments
        ) and len(self.pods()) == sum(each["spec"]["replicas"] for each in deployments)

    def pods(self, component: str | None = None) -> list[dict[str, Any]]:
        """All of them, also those that end."""
        labels = f"app.kubernetes.io/instance={NAME}"
        if component:
            labels += f",app.kubernetes.io/component={component}"
        found = self.cluster.read("pods", "--namespace", self.namespace, "--selector", labels)
        pods: list[dict[str, Any]] = found["items"]
        return pods

    def restarts(self) -> dict[str, int]:
        """Of every pod's container."""
        return {
            pod["metadata"]["name"]: status["restartCount"]
            for pod in self.pods()
            for status in pod["status"]["containerStatuses"]
        }

    def evict(self, pod: str) -> str:
        """Ask for it as `kubectl drain` does; "" or why not."""
        eviction = (
            '{"apiVersion": "policy/v1beta1", "kind": "Eviction", '
            f'"metadata": {{"name": "{pod}", "namespace": "{self.namespace}"}}}}'
        )
        place = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        try:
            self.cluster.kubectl("create", "--raw", place, "--filename=-", given=eviction)
        except subprocess.CalledProcessError as refused:
            return " ".join(refused.__notes__)
        return ""

    def python(self, pod: str, source: str) -> subprocess.CompletedProcess[str]:
        """Run a program in a pod's container."""
        command = [
            self.cluster.kubectl_program, f"--kubeconfig={self.cluster.kubeconfig}",
            f"--namespace={self.namespace}", "exec", pod, "--", "python3", "-c", source,
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=False)

    @contextmanager
    def gateway(self) -> Iterator[str]:
        """Where its Service is reached."""
        service = self.cluster.read("service", NAME, "--namespace", self.namespace)["spec"]
        port = service["ports"][0]["port"]
        with self.cluster.reaching(service["clusterIP"], port) as address:
            yield address

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
                    target=_ask,
                    args=(address, number, resuming, counted, stop, lock, begun[number]),
                )
                for number in range(clients)
            ]
            for thread in threads:
                thread.start()
            try:
                wait_until(lambda: all(each.is_set() for each in begun), READY_SECONDS)
                yield counted
            finally:
                stop.set()
                for thread in threads:
                    thread.join()

    def remove(self) -> None:
        """And the namespace, which has nothing else."""
        self.cluster.helm(self.namespace, "uninstall", name=NAME, ignore_not_found=True)
        # A kubelet of 1.20 at times tells that a pod has ended when its grace period is over.
        gone = ["delete", "pods", "--all", "--grace-period=0", "--force"]
        self.cluster.kubectl("--namespace", self.namespace, *gone)
        for kind, name in (("namespace", self.namespace), ("persistentvolume", self.namespace)):
            self.cluster.kubectl("delete", kind, name, "--ignore-not-found", seconds=300)


def _ask(
    address: str,
    number: int,
    resuming: bool,
    counted: Counted,
    stop: threading.Event,
    lock: threading.Lock,
    begun: threading.Event,
) -> None:
    more: dict[str, Any] = {"resume_on": [address], "max_resumes": 30} if resuming else {}
    with TritonClient(address, **more) as client:
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

# SPDX-License-Identifier: Apache-2.0
"""A real HPA over what Prometheus reads in pods: servers come with the load, and leave drained."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.cluster.installation import NAME, Installation
from tests.kubernetes.cluster.machines import wait_until
from tests.kubernetes.cluster.metrics import metrics
from tests.kubernetes.cluster.test_drains import Tell
from tests.prometheus_server import installed
from tritonctl.host.progress import Silent
from tritonctl.runtimes.kubernetes.manifests import render_manifests

pytestmark = pytest.mark.kubernetes

OPERATOR = "monitoring.coreos.com/v1"
FEW, MORE = 2, 10
SCALING = {"by": "adapter", "minReplicas": 1, "maxReplicas": 3, "streamsPerReplica": 4}
# The chart waits five minutes before it takes a server away, which a test does not.
HASTE = {
    "stabilizationWindowSeconds": 5,
    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 5}],
}


@pytest.mark.skipif(not installed(), reason="NO PROMETHEUS: the HPA has nothing to read")
def test_servers_come_and_go_with_the_load(
    served: Installation, tmp_path: Path, tell: Tell
) -> None:
    """1, 3 under twelve streams, 1 under two; no stream of any of them is lost."""
    files = {
        path.relative_to(served.chart).as_posix(): path.read_text(encoding="utf-8")
        for path in served.chart.rglob("*")
        if path.is_file()
    }
    texts = render_manifests(
        files,
        NAME,
        Silent(),
        kubernetes="1.20",
        namespace=served.namespace,
        api_versions=[OPERATOR],
    )
    manifests = [each for text in texts.values() for each in yaml.safe_load_all(text) if each]
    monitors = [each for each in manifests if each["kind"] == "PodMonitor"]
    rules = served.chart / "files" / "prometheus-adapter.yaml"
    with metrics(served.cluster, monitors, served.namespace, rules, tmp_path) as prometheus:
        served.helm("upgrade", {"scaling": SCALING})
        wait_until(lambda: hasten(served), 30)
        with served.streams(FEW) as few:
            with served.streams(MORE) as more:
                began = time.monotonic()
                wait_until(lambda: served_by(served) == 3, 180, lambda: told(served))
                up = time.monotonic() - began
                assert {each["metric"]["job"] for each in prometheus.query("up == 1")} == {
                    "triton", "gateway", "frontend",
                }  # fmt: skip
            began = time.monotonic()
            wait_until(lambda: served_by(served) == 1, 240, lambda: told(served))
            down = time.monotonic() - began
    tell(f"1 to 3 ready in {up:.0f} s, to 1 in {down:.0f} s (hastened); {few}; {more}")
    assert (few.lost, more.lost) == ([], [])
    # While two more servers start on the cores of the only one, it can miss Envoy's health checks.
    assert all("no healthy upstream" in each for each in few.refused + more.refused)


def hasten(served: Installation) -> bool:
    """In the version that has the field: `kubectl patch` finds nothing to change in it.

    Whether it is done: its controller writes there, too.
    """
    place = "/apis/autoscaling/v2beta2/namespaces/{}/horizontalpodautoscalers/{}-triton"
    address = place.format(served.namespace, NAME)
    record = json.loads(served.cluster.kubectl("get", "--raw", address))
    record["spec"]["behavior"]["scaleDown"] |= HASTE
    command = ("replace", "--raw", address, "--filename=-")
    return served.cluster.asked(*command, given=json.dumps(record)).returncode == 0


def served_by(served: Installation) -> int:
    """Servers that are ready, when there are as many as are wanted and none that ends."""
    deployment = served.cluster.read(served.namespace, "deployments", f"{NAME}-triton")
    wanted: int = deployment["spec"]["replicas"]
    ready = deployment["status"].get("readyReplicas", 0)
    return wanted if ready == wanted == len(served.pods("triton")) else 0


def told(served: Installation) -> str:
    """What the HPA says of itself."""
    return served.kubectl("describe", "hpa")

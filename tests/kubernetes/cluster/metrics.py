# SPDX-License-Identifier: Apache-2.0
"""A Prometheus that reads the pods as the chart's PodMonitors say, and the metrics API over it."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.cluster.machines import ADDRESS, PROGRAMS
from tests.kubernetes.cluster.running import Cluster
from tests.prometheus_server import Prometheus

ADAPTER_PORT, PROMETHEUS_PORT = 4443, 9090
_META = "__meta_kubernetes_pod_"
RESOURCES = f"""
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: v1beta1.custom.metrics.k8s.io}}
spec:
  service: {{name: adapter, namespace: kube-system, port: 443}}
  group: custom.metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
---
apiVersion: v1
kind: Service
metadata: {{name: adapter, namespace: kube-system}}
spec: {{ports: [{{port: 443, targetPort: {ADAPTER_PORT}, protocol: TCP}}]}}
---
apiVersion: v1
kind: Endpoints
metadata: {{name: adapter, namespace: kube-system}}
subsets: [{{addresses: [{{ip: {ADDRESS}}}], ports: [{{port: {ADAPTER_PORT}}}]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: custom-metrics}}
rules: [{{apiGroups: [custom.metrics.k8s.io], resources: ["*"], verbs: [get, list]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: custom-metrics}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: custom-metrics}}
subjects: [{{kind: ServiceAccount, name: horizontal-pod-autoscaler, namespace: kube-system}}]
"""


def scraping(monitors: Sequence[dict[str, Any]], targets: Path) -> dict[str, Any]:
    """Prometheus' configuration for PodMonitors, as its operator writes it, each second."""
    source = {"files": [str(targets)], "refresh_interval": "1s"}
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": monitor["metadata"]["name"],
                "metrics_path": endpoint["path"],
                "file_sd_configs": [source],
                "relabel_configs": _chosen(monitor["spec"]["selector"], endpoint["port"])
                + _snake(endpoint.get("relabelings", [])),
                "metric_relabel_configs": _snake(endpoint.get("metricRelabelings", [])),
            }
            for monitor in monitors
            for endpoint in monitor["spec"]["podMetricsEndpoints"]
        ],
    }


def _chosen(selector: dict[str, Any], port: str) -> list[dict[str, Any]]:
    """Pods by their labels and a port by its name; namespace and pod become labels."""
    wanted = {key: [value] for key, value in selector.get("matchLabels", {}).items()}
    wanted |= {each["key"]: each["values"] for each in selector.get("matchExpressions", [])}
    kept = [([_label(key)], "|".join(values)) for key, values in wanted.items()]
    kept.append(([f"{_META}container_port_name"], port))
    named = (("namespace", "__meta_kubernetes_namespace"), ("pod", f"{_META}name"))
    return [
        *({"action": "keep", "source_labels": labels, "regex": regex} for labels, regex in kept),
        *({"source_labels": [label], "target_label": name} for name, label in named),
    ]


def _snake(rules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As Prometheus spells what its operator spells otherwise."""
    return [
        {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", key): value for key, value in rule.items()}
        for rule in rules
    ]


def discovered(pods: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every port of every pod, labelled as Prometheus' own discovery does: Debian's has none."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
                f"{_META}name": pod["metadata"]["name"],
                f"{_META}container_port_name": port["name"],
                **{_label(name): value for name, value in pod["metadata"]["labels"].items()},
            },
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container["ports"]
    ]


def _label(name: str) -> str:
    return f"{_META}label_{re.sub('[^a-zA-Z0-9]', '_', name)}"


@contextmanager
def discovering(cluster: Cluster, namespace: str, targets: Path) -> Iterator[None]:
    """Meanwhile `targets` has the pods that there are."""
    stop = threading.Event()

    def follow() -> None:
        while not stop.wait(1):
            pods = cluster.read(namespace, "pods")["items"]
            staged = targets.with_suffix(".staged")
            staged.write_text(json.dumps(discovered(pods)), encoding="utf-8")
            staged.replace(targets)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def metrics(
    cluster: Cluster, monitors: Sequence[dict[str, Any]], namespace: str, rules: Path, folder: Path
) -> Iterator[Prometheus]:
    """Both in the cluster's network, and its API told of them."""
    configuration = folder / "prometheus.yml"
    targets = folder / "targets.json"
    text = yaml.safe_dump(scraping(monitors, targets))
    configuration.write_text(text, encoding="utf-8")
    program = [shutil.which("prometheus") or "prometheus", f"--config.file={configuration}"]
    program.append(f"--storage.tsdb.path={folder / 'data'}")
    program.append(f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}")
    adapter = [sys.executable, str(PROGRAMS / "adapter.py"), str(rules)]
    adapter.append(f"http://127.0.0.1:{PROMETHEUS_PORT}")
    adapter += [str(cluster.state / "pki" / name) for name in ("api.crt", "api.key")]
    adapter += [ADDRESS, str(ADAPTER_PORT)]
    cluster.kubectl("apply", "--filename=-", given=RESOURCES)
    try:
        with (
            discovering(cluster, namespace, targets),
            cluster.running(*program, log=folder / "prometheus.log"),
            cluster.running(*adapter, log=folder / "adapter.log"),
            cluster.reaching("127.0.0.1", PROMETHEUS_PORT) as address,
        ):
            yield Prometheus(f"http://{address}")
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--filename=-", given=RESOURCES)

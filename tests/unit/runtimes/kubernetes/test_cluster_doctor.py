# SPDX-License-Identifier: Apache-2.0
"""`doctor --on kubernetes`: what a cluster has, and whether the chart fits into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_here
from tests.fakes.kubectl import FakeKubectl
from tests.json_page import as_documented
from tests.unit.runtimes.kubernetes.objects import LABELS
from tritonctl.doctor.cluster import Chart, ClusterReport, examine_cluster
from tritonctl.doctor.cluster_capacity import (
    gpu_finding,
    quota_finding,
    room_finding,
    schedulable_nodes,
)
from tritonctl.errors import ConfigurationError
from tritonctl.runtimes.kubernetes.kubectl import Kubectl
from tritonctl.runtimes.kubernetes.resource_requests import (
    PodRequests,
    amount_text,
    merge_values,
    quantity,
    requested_pods,
    requests_of,
)

GIB = 1 << 30
VALUES: Mapping[str, Any] = {
    "images": {"triton": "t", "gateway": "g", "frontend": "f"},
    "weights": {"from": "claim", "claim": {"name": "", "accessMode": "ReadWriteMany"}},
    "triton": {
        "replicas": 1,
        "cpu": "1",
        "memory": "2Gi",
        "gpu": {"count": 0, "resource": "nvidia.com/gpu"},
    },
    "gateway": {"replicas": 2, "cpu": "500m", "memory": "512Mi"},
    "frontend": {"replicas": 1, "cpu": "500m", "memory": "512Mi"},
    "scaling": {"by": "none", "minReplicas": 3},
}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", 0.5),
        ("2", 2),
        (3, 3),
        ("2Gi", 2 * GIB),
        ("1.5k", 1500),
        ("1M", 1e6),
        ("1e3", 1000),
        ("24581684Ki", 24581684 * 1024),
    ],
)
def test_quantities(text: object, number: float) -> None:
    """As Kubernetes writes them."""
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "1x", "-1", "Gi", "1 Gi", "9" * 40, "1e999", None, "nan"])
def test_what_is_no_quantity(text: object) -> None:
    """Never a number by chance."""
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


def test_amounts_for_people() -> None:
    """With their units."""
    assert amount_text("cpu", 0.5) == "0.5 CPU"
    assert amount_text("requests.memory", 2.5 * GIB) == "2.5 GiB"
    assert amount_text("nvidia.com/gpu", 1) == "1 nvidia.com/gpu"


def test_what_the_chart_asks() -> None:
    """By its values; scaled, the least number of servers; GPUs by their resource."""
    pods = requested_pods(VALUES)
    assert [(each.part, each.count) for each in pods] == [
        ("triton", 1),
        ("gateway", 2),
        ("frontend", 1),
    ]
    assert pods[0].requests == {"cpu": 1, "memory": 2 * GIB}
    changed = merge_values(
        VALUES,
        {
            "scaling": {"by": "keda"},
            "images": {"frontend": ""},
            "triton": {"gpu": {"count": 2, "resource": "nvidia.com/mig-1g.10gb"}},
        },
    )
    pods = requested_pods(changed)
    assert [each.count for each in pods] == [3, 2]
    assert pods[0].requests["nvidia.com/mig-1g.10gb"] == 2
    assert VALUES["scaling"]["by"] == "none"
    from_zero = merge_values(VALUES, {"scaling": {"by": "keda", "minReplicas": 0}})
    assert requested_pods(from_zero)[0].count == 1
    assert requested_pods(merge_values(from_zero, {"scaling": {"spare": 2}}))[0].count == 2
    with pytest.raises(ConfigurationError, match="do not have tritonctl's format"):
        requested_pods({"triton": []})


def test_an_init_container_asks_alone() -> None:
    """Kubernetes takes the larger: it runs before the others."""
    pod = {
        "spec": {
            "containers": [{"resources": {"requests": {"cpu": "1"}}}, {}],
            "initContainers": [{"resources": {"requests": {"cpu": "100m", "memory": "1Ki"}}}],
        }
    }
    assert requests_of(pod) == {"cpu": 1, "memory": 1024}


def _node(name: str = "n", *, ready: bool = True, **changes: Any) -> dict[str, Any]:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110"} | changes.pop("has", {})
    return {
        "metadata": {"name": name, "labels": changes.pop("labels", {})},
        "spec": changes,
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def _pod(node: str, cpu: str, phase: str = "Running", **labels: str) -> dict[str, Any]:
    container = {"resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": f"p-{cpu}", "namespace": "team", "labels": labels},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }


def test_what_is_free_on_nodes() -> None:
    """Of nodes that take pods; a pod that has ended asks nothing."""
    nodes = [_node("a"), _node("b", ready=False), _node("c", unschedulable=True)]
    (node,) = schedulable_nodes(
        nodes, [_pod("a", "1"), _pod("a", "2", "Succeeded"), _pod("b", "1")]
    )
    assert node.name == "a"
    assert node.free["cpu"] == 3
    assert node.free["pods"] == 109


SERVER = PodRequests("triton", 2, {"cpu": 2.0, "memory": 2.0 * GIB})
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def test_room() -> None:
    """Each pod on a node; one more for a rollout."""
    finding = room_finding([SERVER], schedulable_nodes([_node("a"), _node("b")], []))
    assert finding.status == "ok"
    finding = room_finding([SERVER], schedulable_nodes([_node("a")], []))
    assert finding.status == "warning"
    assert "rollout.surge: 0" in finding.remedy
    finding = room_finding([SERVER], schedulable_nodes([_node("a")], [_pod("a", "1")]))
    assert finding.status == "missing"
    assert "1 of 2 triton pods fit" in finding.detail
    assert "1 too full, as a: 1 CPU, 6 GiB free" in finding.detail
    few = schedulable_nodes([_node("a", has={"pods": "1"})], [])
    assert room_finding([SERVER], few).status == "missing"
    assert room_finding([SERVER], []).status == "missing"


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({}, False),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "cpu", "operator": "Exists"}, False),
    ],
)
def test_taints(toleration: Mapping[str, Any], fits: bool) -> None:
    """As the scheduler compares them; what only prefers other pods keeps none away."""
    taints = [TAINT, {"key": "x", "effect": "PreferNoSchedule"}]
    one = PodRequests("triton", 1, {"cpu": 1.0}, tolerations=(toleration,) if toleration else ())
    finding = room_finding([one], schedulable_nodes([_node(taints=taints)], []))
    assert (finding.status == "ok") is fits
    assert fits or "1 with a taint such as gpu" in finding.detail


def test_labels_of_nodes() -> None:
    """A nodeSelector that no node has."""
    one = PodRequests("triton", 1, {"cpu": 1.0}, {"gpu": "h100"})
    assert (
        room_finding([one], schedulable_nodes([_node(labels={"gpu": "h100"})], [])).status == "ok"
    )
    finding = room_finding([one], schedulable_nodes([_node(labels={"gpu": "a100"})], []))
    assert "1 without the labels of nodeSelector" in finding.detail


def test_gpus() -> None:
    """Free of all, MIG by its profile, slices in time; missing only where the chart asks."""
    has = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "7"}
    busy = _pod("n", "1")
    busy["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "3"
    nodes = schedulable_nodes([_node(has=has)], [busy])
    finding = gpu_finding(nodes, "nvidia.com/gpu")
    assert finding.status == "ok"
    assert "5 of 8 nvidia.com/gpu free" in finding.detail
    assert "7 of 7 nvidia.com/mig-1g.10gb free" in finding.detail
    sliced = schedulable_nodes([_node(has=has, labels={"nvidia.com/gpu.replicas": "4"})], [])
    assert "time-sliced on 1 nodes" in gpu_finding(sliced, None).detail
    none = schedulable_nodes([_node()], [])
    assert not gpu_finding(none, None).required
    finding = gpu_finding(none, "nvidia.com/gpu")
    assert (finding.status, finding.required) == ("missing", True)


def test_quotas() -> None:
    """Against what the chart asks; its own pods that run already count as gone."""
    quota = {
        "metadata": {"name": "small"},
        "status": {
            "hard": {"requests.cpu": "4", "limits.memory": "8Gi", "pods": "3", "services": "1"},
            "used": {"requests.cpu": "1", "pods": "1"},
        },
    }
    assert quota_finding([], [SERVER], []).status == "ok"
    finding = quota_finding([quota], [SERVER], [])
    assert finding.status == "missing"
    assert "small leaves 3 CPU of requests.cpu, the chart asks 4 CPU" in finding.detail
    assert "pods" not in finding.detail
    assert quota_finding([quota], [SERVER], [_pod("n", "1")]).status == "ok"
    quota["status"] = {"hard": {"limits.cpu": "99"}}
    assert quota_finding([quota], [SERVER], []).status == "warning"


@pytest.fixture
def kubernetes(cluster: FakeKubectl) -> FakeKubectl:
    """A cluster that has all that the chart needs, and nothing else."""
    versions = {"clientVersion": {"gitVersion": "v1.31.1"}, "serverVersion": {}}
    versions["serverVersion"] = {"gitVersion": "v1.31.4-eks"}
    cluster.says("version", versions)
    cluster.says("get namespace", {"kind": "Namespace"})
    cluster.says("config view --minify", {"contexts": None})
    cluster.says("auth can-i", status=0)
    for kind in ("resourcequotas", "pods", "runtimeclasses"):
        cluster.lists(f"get {kind}", [])
    cluster.lists("get nodes", [_node()])
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    storage = {
        "metadata": {"name": "files", "annotations": default},
        "provisioner": "efs.csi.aws.com",
    }
    cluster.lists("get storageclasses", [storage])
    cluster.says("api-versions", "apps/v1\nv1\nmonitoring.coreos.com/v1\n")
    return cluster


def _examined(values: Mapping[str, Any] = VALUES) -> ClusterReport:
    return examine_cluster(Kubectl(namespace="team"), Chart("demo", values))


def _statuses(report: ClusterReport) -> dict[str, str]:
    return {finding.name: finding.status for finding in report.findings}


def test_a_cluster_that_is_fit(kubernetes: FakeKubectl) -> None:
    """Each optional part that is missing is a line, no failure; nothing is changed there."""
    report = _examined()
    assert report.summary == "Ready for the chart."
    statuses = _statuses(report)
    assert statuses.pop("Prometheus operator") == "ok"
    optional = ("GPUs", "metrics server", "custom metrics", "external metrics", "KEDA")
    for name in (*optional, "Gateway API", "InferencePool"):
        assert statuses.pop(name) == "missing"
    assert set(statuses.values()) == {"ok"}
    changing = {"apply", "create", "patch", "delete", "exec", "label", "scale"}
    verbs = [[word for word in asked if not word.startswith("--")] for asked in kubernetes.asked]
    assert not any(words[0] in changing for words in verbs)


def test_a_cluster_that_lacks_much(kubernetes: FakeKubectl) -> None:
    """Each with what to do; what the chart asks for by its values is required."""
    kubernetes.says("version", {"serverVersion": {"gitVersion": "v1.19.3"}})
    kubernetes.says("auth can-i create secrets", status=1)
    kubernetes.lists("get storageclasses", [])
    values = merge_values(
        VALUES,
        {"triton": {"runtimeClassName": "nvidia", "replicas": 9}, "scaling": {"by": "adapter"}},
    )
    report = _examined(merge_values(values, {"scaling": {"minReplicas": 9}}))
    lacking = {finding.name for finding in report.missing}
    needed = {"cluster", "rights", "room", "runtime classes", "storage classes", "custom metrics"}
    assert lacking == needed
    rights = next(finding for finding in report.findings if finding.name == "rights")
    assert rights.detail == "you may not create secrets"
    assert all(finding.remedy for finding in report.missing)


def test_storage(kubernetes: FakeKubectl) -> None:
    """A class that is named, one of a single node, and a claim that has its volume already."""
    disk = {"metadata": {"name": "disk"}, "provisioner": "ebs.csi.aws.com"}
    kubernetes.lists("get storageclasses", [disk])
    assert _statuses(_examined())["storage classes"] == "missing"
    named = merge_values(VALUES, {"weights": {"claim": {"storageClass": "disk"}}})
    assert _statuses(_examined(named))["storage classes"] == "warning"
    other = merge_values(VALUES, {"weights": {"claim": {"storageClass": "nfs"}}})
    assert _statuses(_examined(other))["storage classes"] == "missing"
    mine = merge_values(VALUES, {"weights": {"claim": {"name": "mine"}}})
    assert _statuses(_examined(mine))["storage classes"] == "ok"
    bound = {"status": {"phase": "Bound"}}
    kubernetes.says("get persistentvolumeclaim demo-releases", bound)
    assert _statuses(_examined())["storage classes"] == "ok"


def test_what_one_may_not_see(kubernetes: FakeKubectl) -> None:
    """A user of a namespace sees neither nodes nor storage: said, and no failure."""
    forbidden = 'Error from server (Forbidden): User "eve" cannot list resource'
    for kind in ("nodes", "storageclasses", "runtimeclasses", "pods --all-namespaces"):
        kubernetes.says(f"get {kind}", err=forbidden, status=1)
    report = _examined()
    assert report.healthy
    statuses = _statuses(report)
    assert statuses["nodes"] == statuses["storage classes"] == "warning"
    assert "room" not in statuses


def test_its_own_pods_count_as_gone(kubernetes: FakeKubectl) -> None:
    """The chart is already there: it needs its room once."""
    own = _pod("n", "4", **LABELS)
    kubernetes.lists("get pods --all-namespaces", [own])
    kubernetes.lists("get pods", [own])
    assert _statuses(_examined())["room"] == "ok"
    kubernetes.lists("get pods", [])
    kubernetes.lists("get pods --all-namespaces", [own])
    assert _statuses(_examined())["room"] == "missing"


def test_the_command(kubernetes: FakeKubectl, tmp_path: Path) -> None:
    """Without a chart; with values for it; a namespace that is missing ends it."""
    done = run_here("doctor", "--on", "kubernetes", "--namespace", "team", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "✓ cluster: Kubernetes 1.31.4-eks, kubectl 1.31.1" in done.stdout
    assert "– KEDA (optional): missing" in done.stdout
    assert "tritonctl deploy kubernetes" in done.stdout
    done = run_here("doctor", "--on", "kubernetes", "--json", cwd=tmp_path)
    assert as_documented("doctor", done.stdout)["healthy"]
    for arguments in (["--values", "v.yaml"], ["--on", "kubernetes", "--values", "v.yaml"]):
        assert run_here("doctor", *arguments, cwd=tmp_path).returncode == 2
    assert run_here("doctor", "--on", "kubernetes", "--bundle", "b", cwd=tmp_path).returncode == 2
    missing = 'Error from server (NotFound): namespaces "team" not found'
    kubernetes.says("get namespace", err=missing, status=1)
    done = run_here("doctor", "--on", "kubernetes", "--namespace", "team", cwd=tmp_path)
    assert done.returncode == 4
    assert "kubectl create namespace team" in done.stderr

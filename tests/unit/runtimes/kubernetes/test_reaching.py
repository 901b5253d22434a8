# SPDX-License-Identifier: Apache-2.0
"""status and logs `--on kubernetes`: what they ask, find and say; options that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_here
from tests.fakes.kubectl import FakeKubectl
from tests.json_page import as_documented
from tests.unit.runtimes.kubernetes.objects import RELEASE, deployment, named, pod

CLUSTER = ("--on", "kubernetes", "--namespace", "team")


def test_a_status_that_is_good(demo: FakeKubectl, tmp_path: Path) -> None:
    """Parts, pods, scaling, evictions; without a project, where there is one installation."""
    hpa = {
        "metadata": named("demo-triton", "triton"),
        "spec": {"minReplicas": 1, "maxReplicas": 4},
        "status": {
            "currentReplicas": 1,
            "desiredReplicas": 1,
            "conditions": [{"type": "ScalingActive", "status": "False", "message": "no metrics"}],
        },
    }
    demo.lists("get horizontalpodautoscalers.v2beta2.autoscaling", [hpa])
    budget = {"metadata": named("demo-triton", "triton"), "status": {"disruptionsAllowed": 1}}
    demo.lists("get poddisruptionbudgets", [budget])
    event = {
        "type": "Warning",
        "reason": "Evicted",
        "message": "low on\nmemory",
        "count": 3,
        "lastTimestamp": "2026-11-26T08:00:00Z",
        "involvedObject": {"kind": "Pod", "name": "demo-triton-0"},
    }
    over = {"kind": "Pod", "name": "demo-triton-1"}
    others = ({"type": "Normal"}, {"reason": "Unhealthy"}, {"involvedObject": over})
    demo.lists("get events", [event, *(event | other for other in others)])
    done = run_here("status", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for part in (
        "demo in namespace team: ready",
        f"release    {RELEASE}",
        "triton     1 of 1 ready",
        "1 of 1 to 4, wants 1; no metrics",
        "evictions  1 of triton now",
        "pod/demo-triton-0: Evicted (3x): low on memory",
    ):
        assert part in done.stdout
    assert done.stdout.count("low on memory") == 1
    record = as_documented("status", run_here("status", *CLUSTER, "--json", cwd=tmp_path).stdout, 1)
    assert record["ready"]
    assert record["releases"] == [RELEASE]
    assert [one["name"] for one in record["parts"]] == ["frontend", "gateway", "triton"]
    assert all("--namespace=team" in asked for asked in demo.asked)


def _waits(reason: str, message: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


KILLED = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-26T08:00:00Z"}
BROKEN = {"reason": "Error", "exitCode": 1, "finishedAt": "2026-11-26T08:00:00Z"}
CRASHES = _waits("CrashLoopBackOff", "back-off 40s")
# What a pod's container says: exit code, what is named, what is advised.
PODS: Mapping[str, tuple[dict[str, Any], int, str, str]] = {
    "no image": (
        _waits("ImagePullBackOff", "not found"),
        4,
        "registry.example/triton:1 cannot be pulled",
        "images.pullSecrets",
    ),
    "no secret": (
        _waits("CreateContainerConfigError", 'secret "keys" not found'),
        4,
        'secret "keys" not found',
        "get secrets",
    ),
    "memory": (
        CRASHES | {"lastState": {"terminated": KILLED}, "restartCount": 4},
        7,
        "OOMKilled, status 137",
        "triton.memory",
    ),
    "weights": (
        CRASHES
        | {"name": "weights", "lastState": {"terminated": BROKEN | {"message": "a\nb is lost\n"}}},
        4,
        "b is lost",
        "releases/ into the claim",
    ),
    "crash": (CRASHES, 7, "keeps exiting", "--previous"),
}


@pytest.mark.parametrize("which", PODS)
def test_pods_that_do_not_start(demo: FakeKubectl, tmp_path: Path, which: str) -> None:
    """Each with its cause; 4 where the cluster lacks something, 7 where the server fails."""
    status, code, problem, remedy = PODS[which]
    demo.lists("get pods", [pod("demo-triton-1", ready=False, container=status)])
    demo.lists("get deployments", [deployment("triton", ready=0)])
    done = run_here("status", *CLUSTER, cwd=tmp_path)
    assert done.returncode == code
    assert problem in done.stderr
    assert remedy in done.stderr
    assert "NOT READY" in done.stdout
    assert status["state"]["waiting"]["reason"] in done.stdout


NODES = {
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.": "triton.gpu",
    "0/3 nodes are available: 3 Insufficient memory.": "triton.memory",
    "0/3 nodes are available: 3 node(s) had taint {a: b}, that the pod didn't tolerate.": (
        "triton.tolerations"
    ),
    "0/3 nodes are available: 3 node(s) didn't match node selector.": "triton.nodeSelector",
    'persistentvolumeclaim "demo-releases" not found': "describe pvc",
}


@pytest.mark.parametrize("message", NODES)
def test_pods_that_no_node_takes(demo: FakeKubectl, tmp_path: Path, message: str) -> None:
    """What the scheduler says, and which value to change."""
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    demo.lists("get pods", [pod("demo-triton-1", ready=False, conditions=(condition,))])
    demo.lists("get deployments", [deployment("triton", ready=0)])
    done = run_here("status", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 4
    assert message in done.stderr
    assert NODES[message] in done.stderr


def test_a_quota_and_a_claim(demo: FakeKubectl, tmp_path: Path) -> None:
    """There is no pod to ask: the Deployment says it; a claim before all that waits for it."""
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "message": 'pods "demo-triton-" is forbidden: exceeded quota: small',
    }
    demo.lists("get pods", [])
    demo.lists("get deployments", [deployment("triton", ready=0, conditions=[failure])])
    done = run_here("status", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 4
    assert "exceeded quota: small" in done.stderr
    assert "describe resourcequota" in done.stderr
    claim = {
        "metadata": named("demo-releases", ""),
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "nfs"},
        "status": {"phase": "Pending"},
    }
    demo.lists("get persistentvolumeclaims", [claim])
    done = run_here("status", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 4
    assert "it requests ReadWriteMany from nfs" in done.stderr


def test_a_secret_that_is_missing(demo: FakeKubectl, tmp_path: Path) -> None:
    """Only an event tells; one about a pod that is gone is nobody's trouble."""
    said = 'MountVolume.SetUp failed for volume "secrets" : secret "demo-secrets" not found'
    event = {
        "type": "Warning",
        "reason": "FailedMount",
        "message": said,
        "involvedObject": {"kind": "Pod", "name": "demo-gateway-1"},
    }
    demo.lists("get pods", [pod("demo-gateway-1", "gateway", ready=False), pod("demo-triton-1")])
    demo.lists("get deployments", [deployment("gateway", ready=0), deployment("triton")])
    demo.lists("get events", [event])
    done = run_here("status", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 4
    assert 'secret "demo-secrets" not found' in done.stderr
    assert "get secrets,configmaps" in done.stderr
    event["involvedObject"] = {"kind": "Pod", "name": "demo-gateway-0"}
    demo.lists("get events", [event])
    assert run_here("status", *CLUSTER, cwd=tmp_path).returncode == 7


def test_one_that_is_not_there(demo: FakeKubectl, tmp_path: Path) -> None:
    """The nearest name; several, none; a namespace that does not exist."""
    done = run_here("status", *CLUSTER, "--release-name", "dmeo", cwd=tmp_path)
    assert done.returncode == 4
    assert "did you mean `demo`?" in done.stderr
    other = deployment("triton")
    other["metadata"]["labels"] = named("x", "triton", **{"app.kubernetes.io/instance": "b"})[
        "labels"
    ]
    demo.lists("get deployments", [deployment("triton"), other])
    done = run_here("status", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 4
    assert "b, demo" in done.stderr
    demo.lists("get deployments", [])
    assert "deploy kubernetes" in run_here("status", *CLUSTER, cwd=tmp_path).stderr
    demo.says("get namespace", err='Error from server (NotFound): namespaces "t"', status=1)
    assert "no namespace `team`" in run_here("status", *CLUSTER, cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "--namespace", "team"], "add --on kubernetes"),
        (["status", "--on", "kubernets"], "--on"),
        (["status", *CLUSTER, "--release-name=-x"], "not a valid Kubernetes name"),
        (["generate", "speller", "hi", *CLUSTER, "--url", "127.0.0.1:1"], "two servers"),
        (["smoke", *CLUSTER, "--url", "127.0.0.1:1"], "two servers"),
        (["top", *CLUSTER, "--metrics-url", "127.0.0.1:1"], "two servers"),
    ],
)
def test_options_that_do_not_fit(
    demo: FakeKubectl, tmp_path: Path, arguments: list[str], said: str
) -> None:
    """Exit code 2, and what to leave out."""
    done = run_here(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not any("port-forward" in asked for asked in demo.asked)


def test_logs(demo: FakeKubectl, tmp_path: Path) -> None:
    """Of Triton's pods, of both slots, each line with its pod; of a part."""
    pods = [pod("demo-triton-1"), pod("demo-triton-b-1", "triton-b"), pod("demo-g", "gateway")]
    demo.lists("get pods", pods)
    demo.says("logs", "[pod/demo-triton-1/triton] one\n[pod/demo-triton-b-1/triton] two\n")
    done = run_here("logs", *CLUSTER, "-n", "7", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "[pod/demo-triton-1/triton] one"
    asked = demo.asked[-1]
    assert "--tail=7" in asked
    selector = next(word for word in asked if word.startswith("--selector="))
    assert selector.endswith("app.kubernetes.io/component in (triton,triton-b)")
    assert "--follow" not in asked
    run_here("logs", "gateway", *CLUSTER, "--follow", cwd=tmp_path)
    assert any(word.endswith("in (gateway)") for word in demo.asked[-1])
    assert "--follow" in demo.asked[-1]
    done = run_here("logs", "frontend", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 7
    assert "no frontend pod" in done.stderr

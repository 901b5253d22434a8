# SPDX-License-Identifier: Apache-2.0
"""A kubectl of our own on the PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.kubectl import FakeKubectl
from tests.unit.runtimes.kubernetes.objects import deployment, pod


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """What kubectl answers in this test."""
    fake = FakeKubectl(tmp_path / "kubectl")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    return fake


@pytest.fixture
def demo(cluster: FakeKubectl) -> FakeKubectl:
    """An installation that serves."""
    parts = ("triton", "gateway", "frontend")
    cluster.lists("get pods", [pod(f"demo-{part}-1", part) for part in parts])
    cluster.lists("get deployments", [deployment(part) for part in parts])
    for kind in ("persistentvolumeclaims", "events", "poddisruptionbudgets"):
        cluster.lists(f"get {kind}", [])
    cluster.says(
        "get horizontalpodautoscalers.v2.autoscaling",
        err='error: the server doesn\'t have a resource type "horizontalpodautoscalers"',
        status=1,
    )
    cluster.lists("get horizontalpodautoscalers.v2beta2.autoscaling", [])
    cluster.says("get namespace", {"kind": "Namespace"})
    service = {"spec": {"ports": [{"name": "inference", "port": 9000}]}}
    cluster.says("get service demo", service)
    return cluster

# SPDX-License-Identifier: Apache-2.0
"""Verbs that ask a server, `--on kubernetes`: through a forwarded port, which is opened anew."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.commands import run_here
from tests.envoy_process import project_with
from tests.fakes.kubectl import FakeKubectl
from tests.fakes.task_server import TaskServer, task_server
from tests.fakes.text_server import text_server
from tests.loopback_http import Answering, listening
from tests.unit.runtimes.kubernetes.objects import RELEASE, pod
from tests.unit.security.test_channels import serving
from tritonctl.cli.cluster_options import ClusterOptions
from tritonctl.cli.load_options import LoadOptions
from tritonctl.cli.options import ProjectOptions
from tritonctl.cli.server_options import ServerOptions
from tritonctl.errors import ServerError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.metrics import Metrics
from tritonctl.runtimes.kubernetes.api_errors import ClusterError
from tritonctl.runtimes.kubernetes.counter_carryover import CounterCarryover
from tritonctl.runtimes.kubernetes.installation import ChartInstallation
from tritonctl.runtimes.kubernetes.kubectl import Kubectl
from tritonctl.runtimes.kubernetes.metrics import InstallationMetrics
from tritonctl.security.certificates import make_certificates, tls_section
from tritonctl.smoke.outcomes import SmokeReport

CLUSTER = ("--on", "kubernetes", "--namespace", "team")
ON = ServerOptions(cluster=ClusterOptions("kubernetes", namespace="team"))


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.fixture
def tasks(demo: FakeKubectl) -> Iterator[TaskServer]:
    """A server of every task behind the gateway."""
    with task_server() as server:
        server.withheld = True
        demo.forwards("service/demo", _port(server.url))
        yield server


def test_a_prompt(demo: FakeKubectl, tmp_path: Path) -> None:
    """Through a forwarded port, which ends with the command."""
    with text_server() as server:
        demo.forwards("service/demo", _port(server.url))
        asked = ("speller", "hi", "--max-tokens", "4")
        done = run_here("generate", *asked, *CLUSTER, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finish_reason"] is not None
    assert ":9000" in demo.asked[-1]


VERBS = {
    "embed": ("embed", "encoder", "--text", "abc", "--text", "d"),
    "classify": ("classify", "classifier", "--text", "abc"),
    "rerank": ("rerank", "reranker", "--query", "a", "--text", "abc"),
    "infer": ("infer", "encoder", "--input", 'text_input=[["abc"]]'),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_task(tasks: TaskServer, tmp_path: Path, verb: str) -> None:
    """By the same options; a gateway does not tell how many rows fit into a request."""
    done = run_here(*VERBS[verb], *CLUSTER, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(map(json.loads, lines))
    assert len(tasks.requests) == len(lines)


def test_a_gateway_whose_pod_is_gone(
    demo: FakeKubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next question goes to another pod; one that was under way fails for that reason."""
    monkeypatch.chdir(tmp_path)
    demo.forwards("service/demo", 9)
    with ON.open_server(ProjectOptions()) as named:
        gateway = named.connection
        assert gateway is not None
        first = gateway.address()
        assert gateway.address() == first
        os.killpg(gateway._forward._process.pid, signal.SIGKILL)
        gateway._forward._process.wait()
        with pytest.raises(ClusterError, match="service/demo was closed"):
            gateway.require_alive()
        assert gateway.address() != first
        gateway.require_alive()


def test_a_gateway_that_leads_nowhere(demo: FakeKubectl, tmp_path: Path) -> None:
    """It was kubectl that ended, not a server at an address of this machine."""
    with text_server() as server:
        port = _port(server.url)
    demo.forwards("service/demo", port)
    done = run_here("generate", "speller", "hi", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 4
    assert "the connection to service/demo was closed" in done.stderr
    assert "--namespace team get pods" in done.stderr


def test_names_in_certificates(demo: FakeKubectl, tmp_path: Path) -> None:
    """The Service's where no other is named: a forwarded port is at 127.0.0.1."""
    certs = tmp_path / "certs"
    make_certificates(certs)
    pair = ("--certificate", str(certs / "client.crt"), "--key", str(certs / "client.key"))
    asked = ("infer", "speller", "--input", "x=[1]", *CLUSTER, "--ca", str(certs / "ca.crt"), *pair)
    with serving(certs) as url:
        demo.forwards("service/demo", _port(url))
        other = run_here(*asked, cwd=tmp_path)
        assert "for another name" in other.stderr
        right = run_here(*asked, "--server-name", "localhost", cwd=tmp_path)
        assert "certificate" not in right.stderr
    make_certificates(certs, ["demo"], force=True)
    with serving(certs) as url:
        demo.forwards("service/demo", _port(url))
        assert "certificate" not in run_here(*asked, cwd=tmp_path).stderr


def test_smoke_asks_the_public_models(
    demo: FakeKubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pod, past the gateway; a check is repeated by what names the cluster."""
    seen: list[Any] = []
    demo.forwards("pod/demo-triton-1", 9)

    def smoked(plan: Any, _: Any) -> SmokeReport:
        seen.append(plan)
        return SmokeReport(plan.endpoint.url, ())

    monkeypatch.setattr("tritonctl.smoke.run.smoke_server", smoked)
    done = run_here("smoke", *CLUSTER, "--models", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert seen[0].models == ("a",)
    assert seen[0].server_option == "--on kubernetes --namespace team --release-name demo"
    assert seen[0].metrics is not None
    assert not any("service/demo" in asked for asked in demo.asked)


def test_a_load_test_asks_a_pod_what_is_served(demo: FakeKubectl, tmp_path: Path) -> None:
    """A gateway keeps configurations to itself, and with them the steps of a model."""
    demo.forwards("pod/demo-triton-1", 9)
    demo.forwards("service/demo", 10)
    options = LoadOptions(server=ON)
    server = SimpleNamespace(tls=None)
    project = cast("Project", SimpleNamespace(root=tmp_path / "demo", server=server))
    with options.target(project, "http", Silent()) as target:
        assert target.metadata_endpoint is not None
        assert target.metadata_endpoint.tls is None
        assert target.metadata_source("http") == ("grpc", target.metadata_endpoint)
        assert target.metadata_endpoint.url != target.url
        assert target.metrics is not None


def test_a_load_test_asks_a_pod_that_has_tls(demo: FakeKubectl, tmp_path: Path) -> None:
    """By the project's own files for it, under the name that its certificate is for."""
    folder = tmp_path / "demo"
    make_certificates(folder / "certs", ["demo-triton"])
    server = {"tls": tls_section(Path("certs"))}
    project = project_with({}, folder, server)
    with serving(folder / "certs") as url:
        demo.forwards("pod/demo-triton-1", _port(url))
        demo.forwards("service/demo", 10)
        with LoadOptions(server=ON).target(project, "grpc", Silent()) as target:
            assert target.tls is None
            described = target.metadata_endpoint
            assert described is not None
            assert described.tls is not None
            assert described.tls.server_name == "demo-triton"
            with TritonClient(described.url, tls=described.tls) as client:
                assert client.model_ready("speller")


class _Triton(Answering):
    count = 3

    def answer(self) -> None:
        lines = (
            "# TYPE nv_inference_count counter",
            f'nv_inference_count{{model="a"}} {self.count}',
            "nv_cpu_utilization 0.5",
            "other 1",
        )
        self.send(200, "\n".join((*lines, "")).encode())


def test_metrics_of_several_pods(demo: FakeKubectl) -> None:
    """Added up, but what several see of one machine; pods that come are seen, and asked."""
    with listening(_Triton) as url:
        for name in ("demo-triton-1", "demo-triton-2"):
            demo.forwards(f"pod/{name}", _port(url))
        demo.lists("get pods", [pod("demo-triton-1"), pod("demo-triton-2")])
        now = 0.0
        with InstallationMetrics(ChartInstallation(Kubectl(), "demo"), lambda: now) as pods:
            assert pods.open() == "demo, 2 pods"
            assert pods.releases == RELEASE
            metrics = pods.read("")
            assert metrics.total("nv_inference_count") == 6
            assert metrics.total("nv_cpu_utilization") == 0.5
            assert pods.read_monotonic().total("nv_inference_count") == 6
            demo.lists("get pods", [pod("demo-triton-1")])
            pods.read("")
            now = 60.0
            with pytest.raises(ServerError, match="has changed"):
                pods.read("")
            # A load test counts on: what the pod that is gone had counted is in the sum.
            assert pods.read_monotonic().total("nv_inference_count") == 6
            assert pods.read_monotonic().total("other") == 1
            assert pods.open() == "demo, 1 pod"
            demo.lists("get pods", [pod("demo-triton-1", ready=False)])
            with pytest.raises(ServerError, match="no Triton pod of demo is ready"):
                pods.open()


def _counted(**counts: int) -> dict[str, Metrics]:
    text = "# TYPE a counter\na {}\n# TYPE b gauge\nb 1\n"
    return {name: Metrics.parse(text.format(count)) for name, count in counts.items()}


def test_counters_that_are_no_more() -> None:
    """Of a pod that is gone, and of one that was started again; a gauge is not kept."""
    lost = CounterCarryover(count_resets=True)
    assert not [*lost.update(_counted(x=5, y=7))]
    assert not [*lost.update(_counted(x=6, y=7))]
    assert lost.update(_counted(x=6)).total("a") == 7
    assert lost.update(_counted(x=2, z=1)).total("a") == 13
    after = lost.update(_counted(x=3, z=2))
    assert after.total("a") == 13
    assert not after.samples("b")
    rollout = CounterCarryover(count_resets=False)
    rollout.update(_counted(x=5, y=7))
    assert not [*rollout.update(_counted(x=1, y=7))]
    assert rollout.update(_counted(x=1)).total("a") == 7
    rollout.restore(lost.to_record())
    assert rollout.update(_counted(x=1)).total("a") == 13


# What kubectl says of the installation, and a part of what to do.
REFUSED = {
    "no cluster": ("The connection to the server 10.0.0.1:6443 was refused", "cluster-info"),
    "no context": ('error: context "foo" does not exist', "get-contexts"),
    "no rights": (
        'Error from server (Forbidden): deployments.apps is forbidden: User "eve" cannot list',
        "auth can-i",
    ),
    "no namespace": ('Error from server (NotFound): namespaces "team" not found', "--namespace"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_nothing_is_done_where_the_cluster_refuses(
    demo: FakeKubectl, tmp_path: Path, why: str
) -> None:
    """Exit code 4 and what to type next, before a port is forwarded."""
    said, remedy = REFUSED[why]
    demo.says("get deployments", err=said, status=1)
    done = run_here("infer", "encoder", *CLUSTER, cwd=tmp_path)
    assert done.returncode == 4
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr
    assert not any("port-forward" in asked for asked in demo.asked)

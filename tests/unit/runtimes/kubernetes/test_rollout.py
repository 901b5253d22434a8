# SPDX-License-Identifier: Apache-2.0
"""A rollout in a cluster that a fake kubectl stands for: routes, slots, metrics, and no cluster."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.cluster import FakeCluster
from tests.unit.conftest import Sandbox
from tritonctl.errors import (
    ConfigurationError,
    HostError,
    ServerError,
    TritonctlError,
    UsageError,
)
from tritonctl.gateway.shares import TrafficSplit, parse_split, written_version
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.metrics import Metrics
from tritonctl.releases.slots import Slot
from tritonctl.rollout import kubernetes_environment as rolling
from tritonctl.rollout.environment import Observation
from tritonctl.rollout.kubernetes_environment import ClusterService, KubernetesPlatform
from tritonctl.rollout.metrics import Counters, Scrape
from tritonctl.rollout.pods import ClusterConnectivity, PodGroup, PodMetrics
from tritonctl.rollout.pods_scraper import PodsScraper, unreachable_message
from tritonctl.runtimes.kubernetes import candidate_loading as loading
from tritonctl.runtimes.kubernetes.candidate import CandidateObjects, ChartRelease
from tritonctl.runtimes.kubernetes.diagnostics import container_problem
from tritonctl.runtimes.kubernetes.installation import RELEASE
from tritonctl.runtimes.kubernetes.kubectl import Kubectl
from tritonctl.runtimes.kubernetes.live_installation import LiveRoutes, SlotInstallation, empty_slot

OLD, NEW = f"1-{'a' * 12}", f"2-{'b' * 12}"
CHART: dict[str, dict[str, Any]] = {
    "images": {"triton": "demo/triton-cpu:aaaa", "frontend": "demo/frontend:ffff"},
    "triton": {"memory": "1024Mi", "shm": "64Mi", "startupSeconds": 120},
    "weights": {"from": "claim"},
}
LABELS = {"app.kubernetes.io/name": "tritonctl", "app.kubernetes.io/instance": "demo"}


def charted(name: str, **values: Any) -> ChartRelease:
    """A release's chart."""
    words = (f"--model-repository=/models/__RELEASE__/{name[0]}", "--exit-timeout-secs=30")
    merged = {key: {**CHART[key], **values.get(key, {})} for key in CHART}
    front = json.dumps({"servers": ["__TRITON__:8001"], "repository": "/models/__RELEASE__"})
    return ChartRelease(f"{name}@sha256:{'0' * 64}", words, merged, front)


def deployment(part: str = "triton", slot: str = "") -> dict[str, Any]:
    """As the chart installs it, and the cluster keeps it."""
    component = f"{part}{slot}"
    labels = {**LABELS, "app.kubernetes.io/component": component}
    image = "registry.example/triton-cpu:aaaa" if part == "triton" else "demo/frontend:ffff"
    container = {
        "name": part,
        "image": image,
        "args": ["tritonserver", "--model-repository=/models/x", "--exit-timeout-secs=77"],
        "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi", "cpu": "3"}},
        "startupProbe": {"periodSeconds": 2, "failureThreshold": 60},
    }
    command = ["python3", f"--release={OLD}@sha256:{'0' * 64}", "--source=/source"]
    weights = {"name": "weights", "image": image, "command": command}
    template = {
        "metadata": {"labels": dict(labels), "annotations": {RELEASE: f"{OLD}@sha256:0"}},
        "spec": {
            "containers": [container],
            "initContainers": [weights],
            "nodeSelector": {"zone": "mine"},
            "topologySpreadConstraints": [{"labelSelector": {"matchLabels": dict(labels)}}],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}},
                {"name": "configuration", "configMap": {"name": "demo-frontend"}},
            ],
        },
    }
    return {
        "metadata": {"name": f"demo-{component}", "labels": labels},
        "spec": {"replicas": 3, "selector": {"matchLabels": dict(labels)}, "template": template},
    }


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster with the chart of a project that says what a user is."""
    fake = FakeCluster(tmp_path / "kubectl")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(rolling, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(loading, "_POLL_SECONDS", 0.01)
    live = deployment()
    status = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), 3)
    fake.add("deployment", "demo-triton", **live, status=status)
    fake.add("configmap", "demo-gateway", data={})
    return fake


@pytest.fixture
def project(sandbox: Sandbox) -> Project:
    """Whose users are known."""
    sandbox.data["rollout"] = {"user_header": "x-user-id"}
    return sandbox.load()


@pytest.fixture
def installed(fake: FakeCluster) -> SlotInstallation:
    """The chart, as `demo`."""
    assert fake
    return SlotInstallation(Kubectl(None, "ml"), "demo")


@pytest.fixture
def routes(installed: SlotInstallation, project: Project) -> LiveRoutes:
    """Its routes."""
    return LiveRoutes(installed, project)


def service_of(
    installed: SlotInstallation, routes: LiveRoutes, reach: ClusterConnectivity
) -> ClusterService:
    """What a controller gets; the gateway has no pod."""
    return ClusterService(
        installed, routes, PodGroup(installed, "gateway", Slot.A, 9901, reach), reach
    )


def test_users_move_by_one_patch(
    fake: FakeCluster, installed: SlotInstallation, routes: LiveRoutes
) -> None:
    """The first makes the ConfigMap, which goes with the chart; kubelets read it at once."""
    service = service_of(installed, routes, ClusterConnectivity())
    assert service.share() == 0
    service.move(5)
    made = fake.get("configmap", "demo-routes")
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["name"], owner["uid"]) == ("demo-gateway", "uid-demo-gateway")
    assert parse_split(made["data"]["routes.json"], "") == TrafficSplit(Slot.A, 5)
    before = len(fake.asked("patch"))
    service.roll_back()
    assert len(fake.asked("patch")) == before + 1
    assert len(fake.asked("annotate")) == 2
    version = routes.version()
    assert version != written_version(made["data"]["routes.json"])
    service.roll_back()  # nobody is left to move, and yet it is read again: the gateway confirms it
    assert routes.version() != version
    assert routes.traffic_split() == TrafficSplit(Slot.A, 0)
    service.move(50)
    with pytest.raises(ConfigurationError, match="not a valid next step"):
        service.move(5)


class GatewayPods:
    """Stands for the gateway's pods: what each serves, by uid; None: it does not answer."""

    def __init__(self, **served: str | None) -> None:
        self.served = served

    def metrics(self, path: str, seconds: float) -> dict[str, Metrics]:
        """As Envoy prints its statistics."""
        assert "text_readouts" in path
        assert seconds <= 2
        if None in self.served.values():
            raise ServerError("no answer", remedy="wait")
        labels = 'envoy_rds_route_config="routes"'
        return {
            uid: Metrics.parse(
                f"envoy_http_rds_update_success{{{labels}}} 1\n"
                f'envoy_http_rds_version_text{{{labels},text_value="{version}"}} 0\n'
            )
            for uid, version in self.served.items()
        }


def test_a_move_is_confirmed_by_what_every_pod_serves(
    installed: SlotInstallation, routes: LiveRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never by absence: a pod that was silent before, restarted meanwhile, or reads it late."""
    monkeypatch.setattr(rolling, "_CONFIRM_SECONDS", 0.0)
    pods = GatewayPods(one="a 0", two=None)
    service = ClusterService(installed, routes, pods, ClusterConnectivity())  # type: ignore[arg-type]
    service.move(5)
    assert not service.read_by_gateway(0.0)
    pods.served["two"] = "a 0"  # it answers now, restarted, with the routes of before
    assert not service.read_by_gateway(0.0)
    pods.served["one"] = routes.version()
    assert not service.read_by_gateway(0.0)
    pods.served["two"] = routes.version()
    assert service.read_by_gateway(0.0)
    service.roll_back()
    assert not service.read_by_gateway(0.0)
    pods.served = dict.fromkeys(("one", "three"), routes.version())  # one was replaced
    assert service.read_by_gateway(0.0)
    service.roll_back()  # the same split again, written anew
    assert not service.read_by_gateway(0.0)
    pods.served["one"] = routes.version()
    assert not service.read_by_gateway(0.1)
    routes.claim("rollout 1")  # changes no routes
    pods.served["three"] = pods.served["one"]
    assert service.read_by_gateway(0.0)


def test_a_projection_that_is_late_confirms_when_it_comes(
    installed: SlotInstallation, routes: LiveRoutes
) -> None:
    """A kubelet takes up to a minute; whoever waits is told within the time that is given."""
    pods = GatewayPods(one="a 0")
    service = ClusterService(installed, routes, pods, ClusterConnectivity())  # type: ignore[arg-type]
    service.move(5)
    version = routes.version()
    timer = threading.Timer(0.5, lambda: pods.served.update(one=version))
    timer.start()
    assert service.read_by_gateway(5.0)
    timer.join()


def test_what_is_promoted_is_said_by_the_routes_alone(
    fake: FakeCluster, installed: SlotInstallation, routes: LiveRoutes
) -> None:
    """And only where it runs; then the other slot may be emptied, and the stable one may not."""
    service = service_of(installed, routes, ClusterConnectivity())
    with pytest.raises(ServerError, match="no server runs in slot b"):
        service.make_stable("b")
    fake.add("deployment", "demo-triton-b", **deployment(slot="-b"), status={"readyReplicas": 3})
    service.make_stable("b")
    assert routes.traffic_split() == TrafficSplit(Slot.B, 0)
    before = fake.get("deployment", "demo-triton")["spec"]["template"]
    service.stop("a", at_once=True)
    stopped = fake.get("deployment", "demo-triton")
    assert stopped["spec"]["replicas"] == 0
    assert stopped["spec"]["template"] == before
    assert stopped["metadata"]["annotations"]["tritonctl/held"]
    assert "--grace-period=1" in fake.asked("delete")[0]
    with pytest.raises(ServerError, match="slot b is the stable slot"):
        empty_slot(installed, routes, Slot.B, at_once=False)


def test_a_cluster_that_does_not_answer_is_asked_again(
    fake: FakeCluster, installed: SlotInstallation, routes: LiveRoutes
) -> None:
    """Nobody is moved meanwhile, and the judge's clock stands still."""
    seconds = iter(range(1000))
    reach = ClusterConnectivity(lambda: float(next(seconds)))
    service = service_of(installed, routes, reach)
    service.move(5)
    at = reach.clock()
    fake.set(down=4)
    service.roll_back()
    assert routes.traffic_split() == TrafficSplit(Slot.A, 0)
    assert fake.state["down"] == 0
    assert reach.unreachable_seconds == 0
    assert reach.clock() - at < 6


def test_who_may_not_is_told_so(
    fake: FakeCluster, installed: SlotInstallation, routes: LiveRoutes
) -> None:
    """A refusal is no outage: it is not repeated without end."""
    fake.set(objects={})
    routes.claim(None)  # uninstalled: nothing is left to give back
    with pytest.raises(ConfigurationError, match="no installation `demo`"):
        service_of(installed, routes, ClusterConnectivity()).move(5)


def test_the_clock_of_a_cluster_that_is_away() -> None:
    """What passes meanwhile is nobody's silence; after a minute it says what to do."""
    now = 100.0
    reach = ClusterConnectivity(lambda: now)
    reach.mark_unreachable("connection refused")
    now = 130.0
    reach.mark_unreachable("connection refused")
    assert (reach.clock(), reach.unreachable_seconds) == (100.0, 30.0)
    assert "tritonctl rollout abort" not in unreachable_message(reach)
    now = 170.0
    assert "tritonctl rollout abort" in unreachable_message(reach)
    reach.mark_reached()
    now = 171.0
    assert (reach.clock(), reach.unreachable_seconds) == (101.0, 0.0)


def test_a_candidate_has_what_the_installation_has(installed: SlotInstallation) -> None:
    """Node selectors, requests and chosen sizes of the user's values; its own release and image."""
    wanted = charted(NEW, images={"triton": "demo/triton-cpu:bbbb"}, triton={"memory": "2048Mi"})
    live = deployment()
    made = CandidateObjects(installed, charted(OLD), wanted, Slot.B).triton(live)
    assert live == deployment()
    assert made["metadata"]["name"] == "demo-triton-b"
    component = "app.kubernetes.io/component"
    assert made["spec"]["selector"]["matchLabels"][component] == "triton-b"
    template = made["spec"]["template"]
    assert template["metadata"]["labels"]["app.kubernetes.io/version"] == NEW
    pod = template["spec"]
    [server] = pod["containers"]
    assert server["image"] == pod["initContainers"][0]["image"]
    assert server["image"] == "registry.example/triton-cpu:bbbb"
    assert server["args"] == [
        "tritonserver",
        f"--model-repository=/models/{NEW}/2",
        "--exit-timeout-secs=77",
    ]
    assert server["resources"]["limits"]["memory"] == "2048Mi"
    assert server["resources"]["requests"] == {"memory": "2048Mi", "cpu": "3"}
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "128Mi"  # the user's, not the chart's
    assert pod["nodeSelector"] == {"zone": "mine"}
    assert any(word.startswith(f"--release={NEW}@") for word in pod["initContainers"][0]["command"])
    spread = pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    assert spread[component] == "triton-b"
    back = CandidateObjects(installed, wanted, charted(OLD), Slot.A).triton(made)
    assert back["metadata"]["name"] == "demo-triton"
    assert back["spec"]["selector"]["matchLabels"][component] == "triton"


def test_an_image_that_nobody_has_named(installed: SlotInstallation) -> None:
    """The release needs other packages, and what serves has a name that says nothing."""
    live = deployment()
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example/mine:latest"
    same = CandidateObjects(installed, charted(OLD), charted(NEW), Slot.B).triton(live)
    assert same["spec"]["template"]["spec"]["containers"][0]["image"].endswith("mine:latest")
    other = charted(NEW, images={"triton": "demo/triton-cpu:bbbb"})
    with pytest.raises(ConfigurationError, match="needs the image demo/triton-cpu:bbbb"):
        CandidateObjects(installed, charted(OLD), other, Slot.B).triton(live)


def test_a_slot_has_frontends_of_its_own(installed: SlotInstallation) -> None:
    """They ask the servers of their slot, and stable's where those are gone."""
    copying = CandidateObjects(installed, charted(OLD), charted(NEW), Slot.B)
    configuration, made = copying.frontend(deployment("frontend"), Slot.A)
    config = json.loads(configuration["data"]["frontend.json"])
    assert config["servers"] == ["demo-triton-b:8001"]
    assert config["fallbacks"] == ["demo-triton:8001"]
    assert config["repository"] == f"/models/{NEW}"
    volume = made["spec"]["template"]["spec"]["volumes"][1]
    assert volume["configMap"]["name"] == configuration["metadata"]["name"]
    assert configuration["metadata"]["name"] != "demo-frontend"  # that one is the chart's


def test_a_candidate_is_loaded_beside_what_serves(
    fake: FakeCluster, installed: SlotInstallation
) -> None:
    """As many servers; what an older candidate had is gone; it goes with the chart."""
    copying = CandidateObjects(installed, charted(OLD), charted(NEW), Slot.B)
    loading.load_candidate(copying, Silent())
    made = fake.get("deployment", "demo-triton-b")
    assert made["spec"]["replicas"] == 3
    assert made["metadata"]["ownerReferences"][0]["name"] == "demo-gateway"
    assert installed.release(Slot.B).startswith(NEW)
    older = deployment(slot="-b")
    older["spec"]["template"]["spec"]["containers"].append({"name": "sidecar"})
    fake.add("deployment", "demo-triton-b", **older)
    loading.load_candidate(copying, Silent())
    containers = fake.get("deployment", "demo-triton-b")["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in containers] == ["triton"]


def test_slot_b_has_an_autoscaler_where_slot_a_has(
    fake: FakeCluster, installed: SlotInstallation
) -> None:
    """With its metrics, which the oldest version keeps in an annotation; none without."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "demo-triton"}
    spec = {"minReplicas": 1, "maxReplicas": 4, "scaleTargetRef": target}
    metrics = {"autoscaling.alpha.kubernetes.io/metrics": "[]", "meta.helm.sh/release-name": "demo"}
    fake.add(
        "horizontalpodautoscaler",
        "demo-triton",
        apiVersion="autoscaling/v1",
        kind="HorizontalPodAutoscaler",
        metadata={"annotations": metrics},
        spec=spec,
    )
    loading.load_candidate(
        CandidateObjects(installed, charted(OLD), charted(NEW), Slot.B), Silent()
    )
    made = fake.get("horizontalpodautoscaler", "demo-triton-b")
    assert made["spec"]["scaleTargetRef"]["name"] == "demo-triton-b"
    assert made["spec"]["maxReplicas"] == 4
    assert list(made["metadata"]["annotations"]) == ["autoscaling.alpha.kubernetes.io/metrics"]


def test_keda_scales_both_slots_and_leaves_an_empty_one_empty(
    fake: FakeCluster, installed: SlotInstallation, project: Project
) -> None:
    """Each by its own pods; paused at nothing while nothing is to run, and no longer."""
    paused = "autoscaling.keda.sh/paused-replicas"
    query = 'sum(tritonctl_streams{namespace="ml",pod=~"demo-triton-[a-z0-9]+-[a-z0-9]+"}) or x'
    spec = {
        "scaleTargetRef": {"name": "demo-triton"},
        "minReplicaCount": 1,
        "triggers": [{"type": "prometheus", "metadata": {"query": query}}],
    }
    about = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "spec": spec}
    fake.add("scaledobject", "demo-triton", **about)
    loading.load_candidate(
        CandidateObjects(installed, charted(OLD), charted(NEW), Slot.B), Silent()
    )
    made = fake.get("scaledobject", "demo-triton-b")
    assert made["spec"]["scaleTargetRef"]["name"] == "demo-triton-b"
    [trigger] = made["spec"]["triggers"]
    assert 'pod=~"demo-triton-b-[a-z0-9]+-[a-z0-9]+"' in trigger["metadata"]["query"]
    assert paused not in made["metadata"].get("annotations", {})
    assert made["metadata"]["ownerReferences"]
    empty_slot(installed, LiveRoutes(installed, project), Slot.B, at_once=False)
    assert fake.get("scaledobject", "demo-triton-b")["metadata"]["annotations"][paused] == "0"
    assert paused not in fake.get("scaledobject", "demo-triton")["metadata"].get("annotations", {})
    loading.load_candidate(
        CandidateObjects(installed, charted(OLD), charted(NEW), Slot.B), Silent()
    )
    assert paused not in fake.get("scaledobject", "demo-triton-b")["metadata"]["annotations"]
    assert fake.get("deployment", "demo-triton-b")["spec"]["replicas"] == 3


def pod(name: str = "p1", *, component: str = "triton-b", **status: Any) -> dict[str, Any]:
    """A ready pod, unless `status` says otherwise."""
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "component": component,
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"app.kubernetes.io/version": NEW},
        },
        "status": {"phase": "Running", "conditions": ready, **status},
    }


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (
            {
                "initContainerStatuses": [
                    {
                        "name": "weights",
                        "state": {"terminated": {"exitCode": 1, "message": "weights: no release"}},
                    }
                ]
            },
            ServerError,
            "is missing or incomplete: .*weights: no release",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "triton",
                        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "denied"}},
                    }
                ]
            },
            ServerError,
            "cannot be pulled .*: denied",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes: insufficient nvidia.com/gpu",
                    }
                ]
            },
            HostError,
            "insufficient nvidia.com/gpu",
        ),
    ],
    ids=["no release", "no image", "no room"],
)
def test_a_candidate_that_does_not_start(
    fake: FakeCluster,
    installed: SlotInstallation,
    monkeypatch: pytest.MonkeyPatch,
    status: dict[str, Any],
    error: type[Exception],
    told: str,
) -> None:
    """Told in the words of what failed, before the deadline."""
    monkeypatch.setattr(loading, "_UNSCHEDULED_SECONDS", 0.0)
    fake.set(ready=False, pods=[pod(**status)])
    copying = CandidateObjects(installed, charted(OLD), charted(NEW), Slot.B)
    with pytest.raises(error, match=told) as caught:
        loading.load_candidate(copying, Silent())
    assert isinstance(caught.value, TritonctlError)
    assert f"`tritonctl rollout start {NEW} --on kubernetes --namespace ml`" in caught.value.remedy


def test_a_release_that_comes_into_the_claim_later() -> None:
    """Its check fails until then, and is repeated: what it said before is over."""
    failed = {"terminated": {"exitCode": 1, "message": "weights: no release"}}
    for state, hopeless in (
        ({"terminated": {"exitCode": 0, "reason": "Completed"}}, False),
        ({"running": {}}, True),
    ):
        weights: dict[str, Any] = {"name": "weights", "state": state, "lastState": failed}
        trouble = container_problem(pod(initContainerStatuses=[weights]), "")
        assert (trouble is not None) == hopeless


@pytest.fixture
def metrics() -> Iterator[tuple[int, dict[str, float]]]:
    """A port with metrics of one counter."""
    counted = {"nv": 7.0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (
                f"# TYPE nv counter\nnv_total {counted['nv']}\n"
                'tritonctl_server_resident_bytes{process="9"} 3.5e+08\n'
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port, counted
    server.shutdown()
    server.server_close()


def test_the_pods_of_a_version_are_one(
    fake: FakeCluster, installed: SlotInstallation, metrics: tuple[int, dict[str, float]]
) -> None:
    """Their counts added up; unknown while one of them does not answer; who starts is not asked."""
    port, counted = metrics
    starting = pod("p3", conditions=[{"type": "Ready", "status": "False"}])
    fake.set(pods=[pod("p1"), pod("p2"), starting], ports={"pod/p1": port, "pod/p2": port})
    component = PodGroup(installed, "triton", Slot.B, 8002, ClusterConnectivity())
    try:
        found = PodMetrics({"triton-b": component}).scrape("http://triton-b/metrics", 2.0)
        assert found.total("nv") == 14
        assert found.total("tritonctl_server_resident_bytes") == 350_000_000  # of one server
        # One is taken away, as by an autoscaler: what it counted stays counted, also later on.
        fake.set(pods=[pod("p1")])
        component._listed = 0.0
        counted["nv"] = 8.0
        scraped = PodMetrics({"triton-b": component}).scrape("http://triton-b/metrics", 2.0)
        assert scraped.total("nv") == 15
        assert scraped.total("tritonctl_server_resident_bytes") == 350_000_000
        later = PodGroup(installed, "triton", Slot.B, 8002, ClusterConnectivity())
        later.restore(json.loads(json.dumps(component.saved_state())))
        try:
            assert later.total("/metrics", 2.0).total("nv") == 15
        finally:
            later.close()
        fake.set(ports={"pod/p1": 1})
        component.close()
        with pytest.raises(ServerError):
            PodMetrics({"triton-b": component}).scrape("http://triton-b/metrics", 2.0)
    finally:
        component.close()


def test_what_servers_count_is_known_before_anybody_is_moved(
    fake: FakeCluster,
    installed: SlotInstallation,
    project: Project,
    metrics: tuple[int, dict[str, float]],
) -> None:
    """They alone are asked: the gateway has no part in it."""
    fake.set(pods=[pod("p1")], ports={"pod/p1": metrics[0]})
    counted = rolling.KubernetesPlatform(project, installed.kubectl, "demo").counters(Slot.B)
    assert counted == Counters(0, 0, memory_bytes=350_000_000)


def test_no_cluster_is_not_silence(fake: FakeCluster, installed: SlotInstallation) -> None:
    """The version is unknown, and so is the whole look, with the reason."""
    reach = ClusterConnectivity()
    component = PodGroup(installed, "triton", Slot.B, 8002, reach)
    fake.set(down=1)
    with pytest.raises(ServerError, match="unreachable"):
        component.metrics("/metrics", 1.0)
    assert reach.unreachable_seconds > 0

    class Nothing:
        def observe(self, at: float) -> Observation:
            return Observation(Scrape(at, None, None), None)

    seen = PodsScraper(Nothing(), {"b": component}, "b", reach).observe(1.0)  # type: ignore[arg-type]
    assert "users stay where they are" in seen.problem


def test_a_restart_that_others_hide(installed: SlotInstallation) -> None:
    """One pod began anew, another one has counted more since: the version counts from 0."""
    counts = iter([Counters(10, 0), Counters(500, 0)])

    class Metrics:
        def observe(self, at: float) -> Observation:
            return Observation(Scrape(at, None, next(counts)), None)

    component = PodGroup(installed, "triton", Slot.B, 8002, ClusterConnectivity())
    restarts = iter([0, 1])
    component.restarts = lambda: next(restarts)  # type: ignore[method-assign]
    scraper = PodsScraper(Metrics(), {"b": component}, "b", ClusterConnectivity())  # type: ignore[arg-type]
    assert scraper.observe(1.0).scrape.candidate == Counters(10, 0)
    assert scraper.observe(2.0).scrape.candidate == Counters(0, 0)


def test_one_rollout_at_a_time(fake: FakeCluster, project: Project, routes: LiveRoutes) -> None:
    """Also from two machines, each with its own journal; and only of the chart that runs."""
    shadowed = project.rollout.model_copy(update={"shadow": 0.5})
    with pytest.raises(ConfigurationError, match=r"rollout\.shadow"):
        KubernetesPlatform(
            project.model_copy(update={"rollout": shadowed}), Kubectl(None, "ml"), "demo"
        ).prepare(1)
    cluster = KubernetesPlatform(project, Kubectl(None, "ml"), "demo")
    with pytest.raises(ConfigurationError, match="has one slot"):
        cluster.prepare(1)
    fake.add("configmap", "demo-gateway", data={"routes.json": "{}"})
    with pytest.raises(ConfigurationError, match="routes unlike"):
        cluster.prepare(1)
    routes.write(TrafficSplit(Slot.A, 0))
    text = fake.get("configmap", "demo-routes")["data"]["routes.json"]
    chart = text.replace(routes.version(), "a 0")  # a chart's routes have no stamp
    fake.add("configmap", "demo-gateway", data={"routes.json": chart})
    cluster.prepare(1)
    cluster.prepare(1)
    routes.claim("rollout 4 of /elsewhere on another")
    with pytest.raises(UsageError, match="rollout 4 of /elsewhere"):
        cluster.prepare(1)
    assert cluster.journal_details()["namespace"] == "ml"
    assert (cluster.free_slot(), cluster.live_release()) == (Slot.B, OLD)

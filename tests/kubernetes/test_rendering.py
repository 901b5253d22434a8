# SPDX-License-Identifier: Apache-2.0
"""The chart as Helm renders it, for every version of Kubernetes that it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.charts import NEWEST, OLDEST_SCHEMA, Chart, Manifest, of_kind, refused
from tritonctl.errors import ConfigurationError

IMAGE = f"registry.example/demo@sha256:{'0' * 64}"
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "an image": {"weights": {"from": "image", "image": IMAGE, "imageVolumes": True}},
    "copied by each pod": {"weights": {"cache": "pod", "claim": {"name": "theirs"}}},
    "copied once a node": {"weights": {"cache": "node"}},
    "a GPU": {
        "triton": {
            "gpu": {"count": 2, "resource": "nvidia.com/mig-1g.10gb"},
            "nodeSelector": {"nvidia.com/gpu.product": "H100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
        },
        "rollout": {"surge": 0},
    },
    "an open house": {
        "networkPolicy": {"enabled": False},
        "secrets": {"name": ""},
        "images": {"frontend": "", "pullSecrets": ["mine"]},
    },
}
# Since when Kubernetes has them by default.
IMAGE_VOLUMES = 35


def pod_of(manifests: list[Manifest], name: str) -> Manifest:
    """The pod of a Deployment."""
    spec: Manifest = of_kind(manifests, "Deployment", name)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("minor", [20, NEWEST])
def test_helm_has_nothing_to_say(chart: Chart, tmp_path: Path, minor: int) -> None:
    """`helm lint --strict`."""
    assert chart.lint(tmp_path, minor) == []


def test_the_oldest_and_the_newest_schemas_know_every_field(chart: Chart) -> None:
    """As the chart is, and with what most of its values can add."""
    asked = {
        "1.25": chart.manifests(OLDEST_SCHEMA),
        "1.37": [*chart.manifests(NEWEST), *chart.manifests(NEWEST, SETTINGS["a GPU"])],
    }
    assert refused(asked) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", SETTINGS)
def test_every_schema_knows_every_field(chart: Chart, settings: str) -> None:
    """Of all minors, from the oldest that has a schema here."""
    first = IMAGE_VOLUMES if settings == "an image" else OLDEST_SCHEMA
    minors = range(first, NEWEST + 1)
    values = SETTINGS[settings]
    assert refused({f"1.{minor}": chart.manifests(minor, values) for minor in minors}) == []


def test_a_wrong_field_would_be_seen(chart: Chart) -> None:
    """The schemas are strict: this test cannot pass by looking at nothing."""
    manifests = chart.manifests(NEWEST)
    pod_of(manifests, "triton")["containers"][0]["readinesProbe"] = {}
    [mistake] = refused({f"1.{NEWEST}": manifests})
    assert "readinesProbe" in mistake


@pytest.mark.parametrize(
    ("minor", "version"), [(20, "policy/v1beta1"), (21, "policy/v1"), (NEWEST, "policy/v1")]
)
def test_disruption_budgets_are_of_the_version_that_the_cluster_has(
    chart: Chart, minor: int, version: str
) -> None:
    """policy/v1 came with 1.21, v1beta1 went with 1.25; one pod at a time may go."""
    budget = of_kind(chart.manifests(minor), "PodDisruptionBudget", "triton")
    assert budget["apiVersion"] == version
    assert budget["spec"]["maxUnavailable"] == 1
    assert ("unhealthyPodEvictionPolicy" in budget["spec"]) == (minor >= 27)


@pytest.mark.parametrize("name", ["triton", "gateway", "frontend"])
def test_no_container_may_anything(chart: Chart, name: str) -> None:
    """No root, no token, no writing, no capability; seccomp; every init container, too."""
    pod = pod_of(chart.manifests(NEWEST), name)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert all(claim["readOnly"] for claim in claims)


@pytest.mark.parametrize("name", ["triton", "frontend"])
def test_a_release_is_verified_by_an_image_that_the_pod_has_anyway(chart: Chart, name: str) -> None:
    """The server's may be 20 GB: nodes of the frontend do not pull it."""
    manifests = chart.manifests(NEWEST, {"weights": {"cache": "pod"}})
    pod = pod_of(manifests, name)
    [weights], [container] = pod["initContainers"], pod["containers"]
    assert weights["image"] == container["image"]
    assert "--target=/cache" in weights["command"]
    assert any(word.startswith("--only=") for word in weights["command"]) == (name == "frontend")


def test_a_rollout_changes_one_field(chart: Chart) -> None:
    """The release: in the pod's label, in what its server loads, in what is verified before."""
    other = f"7-{'a' * 12}@sha256:{'b' * 64}"
    before, after = (chart.manifests(NEWEST, values) for values in ({}, {"release": other}))
    pod = pod_of(after, "triton")
    assert f"--model-repository=/models/7-{'a' * 12}/repository" in pod["containers"][0]["args"]
    assert f"--release={other}" in pod["initContainers"][0]["command"]
    changed = [a["metadata"]["name"] for a, b in zip(before, after, strict=True) if a != b]
    assert sorted(set(changed)) == ["demo-frontend", "demo-triton"]


@pytest.mark.parametrize("seconds", [30, 600])
def test_nobody_is_killed_while_streams_finish(chart: Chart, seconds: int) -> None:
    """The grace period is longer than the gap, the streams' time and the supervisor's margin."""
    manifests = chart.manifests(NEWEST, {"drain": {"streamsSeconds": seconds}})
    for name in ("triton", "gateway", "frontend"):
        assert pod_of(manifests, name)["terminationGracePeriodSeconds"] == 5 + seconds + 20
    arguments = pod_of(manifests, "triton")["containers"][0]["args"]
    assert [a for a in arguments if "exit-timeout" in a] == [f"--exit-timeout-secs={seconds}"]


def test_the_gateway_goes_on_while_its_service_names_it(chart: Chart) -> None:
    """By Kubernetes' own sleep where it has one, by the image's before."""
    for minor, expected in (
        (29, {"exec": {"command": ["sleep", "5"]}}),
        (30, {"sleep": {"seconds": 5}}),
    ):
        [envoy] = pod_of(chart.manifests(minor), "gateway")["containers"]
        assert envoy["lifecycle"] == {"preStop": expected}


def test_liveness_asks_the_process_and_readiness_its_models(chart: Chart) -> None:
    """So that a reload, a full queue or a drain restarts nothing."""
    [triton] = pod_of(chart.manifests(NEWEST), "triton")["containers"]
    assert triton["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "http"}
    for probe in ("startupProbe", "readinessProbe"):
        assert triton[probe]["httpGet"] == {"path": "/v2/health/ready", "port": 8003}
    startup = triton["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 120


def test_without_a_spare_gpu_one_ends_before_the_next_begins(chart: Chart) -> None:
    """Else a rollout waits for a GPU that nobody gives back."""
    spare = of_kind(chart.manifests(NEWEST), "Deployment", "triton")["spec"]["strategy"]
    assert spare["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    none = chart.manifests(NEWEST, {"rollout": {"surge": 0}})
    strategy = of_kind(none, "Deployment", "triton")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_gpu_is_limited_as_the_cluster_names_it(chart: Chart) -> None:
    """And so requested; kernels are compiled on the disk, not in memory."""
    pod = pod_of(chart.manifests(NEWEST, SETTINGS["a GPU"]), "triton")
    resources = pod["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/mig-1g.10gb"] == 2
    assert resources["requests"]["nvidia.com/mig-1g.10gb"] == 2
    [tmp] = [volume for volume in pod["volumes"] if volume["name"] == "tmp"]
    assert tmp["emptyDir"] == {"sizeLimit": "2Gi"}


def test_an_image_volume_where_the_cluster_has_none(chart: Chart) -> None:
    """Refused by name, with both ways out."""
    values = {"weights": {"from": "image", "image": IMAGE}}
    with pytest.raises(ConfigurationError, match=r"1\.34\.0 has no image volumes") as caught:
        chart.manifests(34, values)
    assert "weights.imageVolumes" in caught.value.problem
    [source] = [
        v for v in pod_of(chart.manifests(35, values), "triton")["volumes"] if v["name"] == "source"
    ]
    assert source["image"]["reference"] == IMAGE


@pytest.mark.parametrize(
    "values",
    [
        {"weights": {"from": "nfs"}},
        {"weights": {"from": "image", "image": "registry.example/demo:latest"}},
        {"weights": {"from": "image"}},
        {"triton": {"memory": "lots"}},
        {"triton": {"replica": 2}},
        {"release": "3"},
        {"drain": {"marginSeconds": 1}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(chart: Chart, values: dict[str, Any]) -> None:
    """By the schema, or where it is used; the error names it."""
    field = next(iter(values))
    with pytest.raises(ConfigurationError, match=field):
        chart.manifests(NEWEST, values)


def test_envoy_finds_every_server_by_itself(chart: Chart) -> None:
    """Headless names, which have each pod's address also while it starts or ends."""
    manifests = chart.manifests(NEWEST)
    envoy = yaml.safe_load(of_kind(manifests, "ConfigMap", "gateway")["data"]["envoy.yaml"])
    clusters = {each["name"]: each for each in envoy["static_resources"]["clusters"]}
    for name, service in (("triton_grpc", "triton"), ("frontend", "frontend")):
        [endpoint] = clusters[name]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        address = endpoint["endpoint"]["address"]["socket_address"]["address"]
        assert address == f"demo-{service}"
        spec = of_kind(manifests, "Service", service)["spec"]
        assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)


def test_envoy_reads_a_certificate_again_when_its_secret_changes(chart: Chart) -> None:
    """From the folder in which the kubelet moves the new ones; no pod is started again."""
    manifests = chart.manifests(NEWEST)
    data = of_kind(manifests, "ConfigMap", "gateway")["data"]
    [secret] = json.loads(data["gateway_tls_certificate.json"])["resources"]
    told = secret["tls_certificate"]
    [envoy] = pod_of(manifests, "gateway")["containers"]
    [mount] = [each for each in envoy["volumeMounts"] if each["name"] == "secrets"]
    assert "subPath" not in mount
    assert told["watched_directory"]["path"] == mount["mountPath"]
    assert told["private_key"]["filename"] == f"{mount['mountPath']}/gateway_tls_key"
    assert "/etc/envoy/gateway_tls_certificate.json" in data["envoy.yaml"]
    assert "gateway_tls_key" not in data["envoy.yaml"]


def test_keys_come_from_a_secret_and_are_nowhere_else(chart: Chart) -> None:
    """Their content is in no file of the chart; the comment says how to make it."""
    assert "not a real one" not in "".join(chart.files.values())
    assert "--from-file=gateway_tls_key=gateway.key" in chart.files["values.yaml"]
    for name in ("triton", "gateway", "frontend"):
        pod = pod_of(chart.manifests(NEWEST), name)
        [secret] = [v["secret"] for v in pod["volumes"] if "secret" in v]
        assert secret["secretName"] == "demo-secrets"


def test_the_program_of_the_config_map_runs(chart: Chart) -> None:
    """Indented into YAML and read back, it is the program still."""
    program = of_kind(chart.manifests(20), "ConfigMap", "weights")["data"]["weights.py"]
    assert program == chart.files["files/weights.py"]
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True
    )
    assert "--release" in done.stdout


def test_ports_name_their_protocol(chart: Chart) -> None:
    """Helm 4 applies on the server, and before 1.21 that refuses a Service port without one."""
    services = [each for each in chart.manifests(20) if each["kind"] == "Service"]
    assert {each["protocol"] for one in services for each in one["spec"]["ports"]} == {"TCP"}

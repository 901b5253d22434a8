# SPDX-License-Identifier: Apache-2.0
"""Parts of the chart that need more than Kubernetes: left out where the cluster lacks it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.charts import NEWEST, OLDEST_SCHEMA, Chart, of_kind, refused
from tritonctl.errors import ConfigurationError

GATEWAY_API, INFERENCE = "gateway.networking.k8s.io/v1", "inference.networking.k8s.io/v1"
ROUTES: dict[str, Any] = {
    "gatewayApi": {
        "parent": "public",
        "parentNamespace": "edge",
        "grpcHostnames": ["grpc.example"],
        "httpHostnames": ["api.example"],
    }
}
POOL: dict[str, Any] = {"inferencePool": {"picker": "demo-epp"}}
OURS = {"GRPCRoute", "HTTPRoute", "InferencePool"}


def test_routes_lead_to_the_service(chart: Chart) -> None:
    """Both kinds, under names of their own; the Service says that HTTP/2 may come without TLS."""
    manifests = chart.manifests(NEWEST, ROUTES, api_versions=[GATEWAY_API])
    [service] = [
        each["spec"]
        for each in manifests
        if (each["kind"], each["metadata"]["name"]) == ("Service", "demo")
    ]
    [port] = service["ports"]
    assert port["appProtocol"] == "kubernetes.io/h2c"
    for kind, name in (("GRPCRoute", "grpc.example"), ("HTTPRoute", "api.example")):
        spec = of_kind(manifests, kind)["spec"]
        assert spec["parentRefs"] == [{"name": "public", "namespace": "edge"}]
        assert spec["hostnames"] == [name]
        [rule] = spec["rules"]
        assert rule["backendRefs"] == [{"name": "demo", "port": port["port"]}]
    assert rule["timeouts"] == {"request": "0s"}


def test_one_kind_of_route_alone(chart: Chart) -> None:
    """As there are names for it; without any, the mistake is reported."""
    values = {"gatewayApi": {"parent": "public", "grpcHostnames": ["grpc.example"]}}
    kinds = {m["kind"] for m in chart.manifests(NEWEST, values, api_versions=[GATEWAY_API])}
    assert kinds & OURS == {"GRPCRoute"}
    with pytest.raises(ConfigurationError, match=r"gatewayApi\.grpcHostnames"):
        chart.manifests(NEWEST, {"gatewayApi": {"parent": "public"}}, api_versions=[GATEWAY_API])


def test_a_pool_selects_the_servers(chart: Chart) -> None:
    """Its picker knows them by a label, and its requests pass the NetworkPolicy.

    Fields: InferencePoolSpec of api/v1/inferencepool_types.go, gateway-api-inference-extension 1.0.
    """
    manifests = chart.manifests(NEWEST, POOL, api_versions=[INFERENCE])
    spec = of_kind(manifests, "InferencePool")["spec"]
    assert spec.keys() == {"selector", "targetPorts", "endpointPickerRef"}
    assert spec["selector"].keys() == {"matchLabels"}
    labels = of_kind(manifests, "Deployment", "triton")["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels["llm-d.ai/engine-type"] == "tritonctl"
    assert spec["endpointPickerRef"] == {"name": "demo-epp", "port": {"number": 9002}}
    [target] = spec["targetPorts"]
    rules = of_kind(manifests, "NetworkPolicy", "triton")["spec"]["ingress"]
    assert {"from": [{"namespaceSelector": {}}], "ports": [{"port": target["number"]}]} in rules


def test_without_a_picker_nothing_changes(chart: Chart) -> None:
    """No label that would restart pods, no way past the gateway."""
    manifests = chart.manifests(NEWEST, api_versions=[INFERENCE, GATEWAY_API])
    assert OURS.isdisjoint(each["kind"] for each in manifests)
    labels = of_kind(manifests, "Deployment", "triton")["spec"]["template"]["metadata"]["labels"]
    assert "llm-d.ai/engine-type" not in labels


@pytest.mark.parametrize("values", [ROUTES, POOL], ids=["routes", "pool"])
def test_a_cluster_without_these_apis(chart: Chart, values: dict[str, Any]) -> None:
    """Is left without them, and Kubernetes' own schemas know the rest."""
    asked = {f"1.{minor}": chart.manifests(minor, values) for minor in (OLDEST_SCHEMA, NEWEST)}
    assert OURS.isdisjoint(each["kind"] for each in asked[f"1.{NEWEST}"])
    assert refused(asked) == []


@pytest.mark.parametrize("others", [[], [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]])
def test_only_the_gateway_reaches_the_frontend(chart: Chart, others: list[dict[str, Any]]) -> None:
    """Its port is behind the gateway's TLS; Prometheus is named, too."""
    values = {"images": {"frontend": "a/b:1"}, "networkPolicy": {"frontendFrom": others}}
    manifests = chart.manifests(NEWEST, values)
    [rule] = of_kind(manifests, "NetworkPolicy", "frontend")["spec"]["ingress"]
    gateway, *remaining = rule["from"]
    labels = gateway["podSelector"]["matchLabels"]
    assert labels["app.kubernetes.io/component"] == "gateway"
    assert remaining == others

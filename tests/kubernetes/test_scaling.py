# SPDX-License-Identifier: Apache-2.0
"""How many servers there are: what is asked of Prometheus, and what becomes of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.charts import NAME, NEWEST, Chart, of_kind, refused
from tests.promtool import needs_promtool, promtool
from tritonctl.errors import ConfigurationError

KEDA, OPERATOR = "keda.sh/v1alpha1", "monitoring.coreos.com/v1"
BY_ADAPTER, BY_KEDA = ({"scaling": {"by": each}} for each in ("adapter", "keda"))


def series(name: str, values: str, pod: str = f"{NAME}-triton-7d9f-x1", **labels: str) -> Any:
    """Samples of one series, a minute apart."""
    every = {"namespace": "default", "pod": pod, **labels}
    text = ",".join(f'{key}="{value}"' for key, value in every.items())
    return {"series": f"{name}{{{text}}}", "values": values}


# Two servers: 10 and 22 streams, 50 % and 90 % of the blocks; beside them a server of another one.
SAMPLES = [
    series("tritonctl_active_streams", "8x5", model="speller_engine"),
    series("tritonctl_waiting_streams", "2x5", model="speller_engine"),
    series("nv_inference_pending_request_count", "0x5", model="speller_tokenizer"),
    series("tritonctl_kv_blocks", "50x5", model="speller_engine", state="used"),
    series("tritonctl_kv_blocks", "50x5", model="speller_engine", state="free"),
    *(
        series(name, values, pod=f"{NAME}-triton-7d9f-x2", **labels)
        for name, values, labels in (
            ("tritonctl_active_streams", "16x5", {"model": "speller_engine"}),
            ("tritonctl_waiting_streams", "5x5", {"model": "speller_engine"}),
            ("nv_inference_pending_request_count", "1x5", {"model": "speller_tokenizer"}),
            ("tritonctl_kv_blocks", "90x5", {"model": "speller_engine", "state": "used"}),
            ("tritonctl_kv_blocks", "10x5", {"model": "speller_engine", "state": "free"}),
        )
    ),
    series("tritonctl_active_streams", "99x5", pod=f"{NAME}-triton-triton-7d9f-x3", model="other"),
]


def evaluated(tmp_path: Path, query: str, samples: list[Any], expected: list[Any]) -> None:
    """Ask promtool for the query's value after two minutes."""
    tests = {
        "tests": [
            {
                "interval": "1m",
                "input_series": samples,
                "promql_expr_test": [
                    {"expr": query, "eval_time": "2m", "exp_samples": expected}
                ],
            }
        ]
    }  # fmt: skip
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(tests, width=10_000), encoding="utf-8")
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout


def triggers(chart: Chart, values: Any = BY_KEDA) -> dict[str, Any]:
    """Of the ScaledObject, by name."""
    scaled = of_kind(chart.manifests(NEWEST, values, api_versions=[KEDA]), "ScaledObject")
    return {each["name"]: each["metadata"] for each in scaled["spec"]["triggers"]}


@needs_promtool
@pytest.mark.parametrize(("name", "value"), [("streams", 32), ("kv", 140)])
def test_what_keda_asks_for(chart: Chart, tmp_path: Path, name: str, value: float) -> None:
    """The sum over the servers of this installation; KEDA divides it by their number."""
    query = triggers(chart)[name]["query"]
    evaluated(tmp_path, query, SAMPLES, [{"labels": "{}", "value": value}])


@needs_promtool
def test_a_lost_prometheus_target_is_no_answer(chart: Chart, tmp_path: Path) -> None:
    """Not 0, which would take servers away at the busiest hour; KEDA does not guess."""
    for asked in triggers(chart).values():
        evaluated(tmp_path, asked["query"], [], [])
        assert asked["ignoreNullValues"] == "false"


def gateway_series(name: str, values: str, cluster: str = "triton_grpc") -> Any:
    """Samples of Envoy's about a cluster of servers."""
    pod = f"{NAME}-gateway-5c6d-x1"
    return series(name, values, pod=pod, envoy_cluster_name=cluster)


@needs_promtool
@pytest.mark.parametrize(("ready", "answers"), [(0, True), (1, False)])
def test_while_no_server_is_ready_nothing_streams(
    chart: Chart, tmp_path: Path, ready: int, answers: bool
) -> None:
    """A first server that starts is no lost Prometheus: KEDA's fallback would start all of them."""
    samples = [gateway_series("envoy_cluster_membership_healthy", f"{ready}x5")]
    expected = [{"labels": "{}", "value": 0}] if answers else []
    for name, asked in triggers(chart).items():
        evaluated(tmp_path, asked["query"], samples, expected)
        assert name in ("streams", "kv")


@needs_promtool
def test_a_spare_is_exactly_one_more(chart: Chart, tmp_path: Path) -> None:
    """32 streams at 3 a server: 11; with two spares 13. The KV cache asks for no more."""
    values = {"scaling": {"by": "keda", "spare": 2}}
    [streams, kv] = sorted(triggers(chart, values).items(), reverse=True)
    evaluated(tmp_path, streams[1]["query"], SAMPLES, [{"labels": "{}", "value": 32 + 2 * 3}])
    assert kv[1]["query"] == triggers(chart)["kv"]["query"]


@needs_promtool
def test_from_zero_by_what_the_gateway_refused(chart: Chart, tmp_path: Path) -> None:
    """Requests of the last minute, by whichever way they came; they ask for one server."""
    asked = triggers(chart, {"scaling": {"by": "keda", "minReplicas": 0}})
    assert set(asked) == {"arrivals", "streams", "kv"}
    refusals = "envoy_cluster_upstream_cx_none_healthy"
    samples = [
        gateway_series(refusals, "0 3 6", "triton_grpc"),
        gateway_series(refusals, "0 0 2", "frontend"),
        gateway_series(refusals, "0 9 99", "admin"),
    ]
    query = asked["arrivals"]["query"].replace(
        "[1m]", "[2m]"
    )  # promtool's samples are a minute apart
    evaluated(tmp_path, query, samples, [{"labels": "{}", "value": 8}])
    assert int(asked["arrivals"]["threshold"]) >= 1_000_000


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"by": "adapter", "spare": 1}, r"scaling\.spare .* need scaling\.by: keda"),
        ({"by": "adapter", "minReplicas": 0}, r"minReplicas: 0 need scaling\.by: keda"),
        ({"by": "keda", "minReplicas": 0, "spare": 1}, "set one of them"),
    ],
    ids=str,
)
def test_what_cannot_go_together(chart: Chart, values: dict[str, Any], said: str) -> None:
    """Is refused by name."""
    with pytest.raises(ConfigurationError, match=said):
        chart.manifests(NEWEST, {"scaling": values}, api_versions=[KEDA])


@needs_promtool
@pytest.mark.parametrize(
    ("metric", "values"),
    [("tritonctl_streams", (10, 22)), ("tritonctl_kv_used_percent", (50, 90))],
)
def test_what_the_adapter_answers(
    chart: Chart, tmp_path: Path, metric: str, values: tuple[float, float]
) -> None:
    """A value for each pod, under the name that the HPA asks for."""
    rules = yaml.safe_load(chart.files["files/prometheus-adapter.yaml"])["rules"]["custom"]
    [rule] = [rule for rule in rules if rule["name"]["as"] == metric]
    pods = f'namespace="default",pod=~"{NAME}-triton-7d9f-x1|{NAME}-triton-7d9f-x2"'
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", pods).replace("<<.GroupBy>>", "pod")
    expected = [
        {"labels": f'{{pod="{NAME}-triton-7d9f-x{number}"}}', "value": value}
        for number, value in enumerate(values, 1)
    ]
    evaluated(tmp_path, query, SAMPLES, expected)
    hpa = of_kind(chart.manifests(NEWEST, BY_ADAPTER), "HorizontalPodAutoscaler")
    assert metric in {each["pods"]["metric"]["name"] for each in hpa["spec"]["metrics"]}


@needs_promtool
def test_a_server_of_tensorrt_llm_counts_too(chart: Chart, tmp_path: Path) -> None:
    """Its own gauges: waiting and active requests, blocks used and free."""
    samples = [
        series("nv_trt_llm_request_metrics", "7x5", model="m", request_type="active"),
        series("nv_trt_llm_request_metrics", "4x5", model="m", request_type="waiting"),
        series("nv_trt_llm_request_metrics", "50x5", model="m", request_type="max"),
        series("nv_trt_llm_kv_cache_block_metrics", "30x5", model="m", kv_cache_block_type="used"),
        series("nv_trt_llm_kv_cache_block_metrics", "70x5", model="m", kv_cache_block_type="free"),
    ]
    for name, value in (("streams", 11), ("kv", 30)):
        query = triggers(chart)[name]["query"]
        evaluated(tmp_path, query, samples, [{"labels": "{}", "value": value}])


@pytest.mark.parametrize(
    ("minor", "version"), [(22, "autoscaling/v2beta2"), (23, "autoscaling/v2")]
)
def test_the_hpa_is_of_the_version_that_the_cluster_has(
    chart: Chart, minor: int, version: str
) -> None:
    """And owns the number of servers."""
    manifests = chart.manifests(minor, BY_ADAPTER)
    assert of_kind(manifests, "HorizontalPodAutoscaler")["apiVersion"] == version
    assert "replicas" not in of_kind(manifests, "Deployment", "triton")["spec"]


def test_the_schemas_know_the_hpa(chart: Chart) -> None:
    """Of the oldest that has one here, and of the newest."""
    asked = {f"1.{minor}": chart.manifests(minor, BY_ADAPTER) for minor in (25, NEWEST)}
    assert refused(asked) == []


@pytest.mark.parametrize("seconds", [30, 600])
def test_down_is_slower_than_the_longest_drain(chart: Chart, seconds: int) -> None:
    """One server at a time, and the next not before the one before it has ended."""
    values = {**BY_ADAPTER, "drain": {"streamsSeconds": seconds}}
    manifests = chart.manifests(NEWEST, values)
    pod = of_kind(manifests, "Deployment", "triton")["spec"]["template"]["spec"]
    down = of_kind(manifests, "HorizontalPodAutoscaler")["spec"]["behavior"]["scaleDown"]
    [policy] = down["policies"]
    assert (policy["type"], policy["value"]) == ("Pods", 1)
    assert policy["periodSeconds"] >= pod["terminationGracePeriodSeconds"]
    assert down["stabilizationWindowSeconds"] >= pod["terminationGracePeriodSeconds"]


def test_a_cluster_without_keda(chart: Chart) -> None:
    """Is left without a ScaledObject, and has the number of servers that was asked for."""
    manifests = chart.manifests(NEWEST, BY_KEDA)
    assert not [each for each in manifests if each["kind"] == "ScaledObject"]
    assert of_kind(manifests, "Deployment", "triton")["spec"]["replicas"] == 1


def test_a_server_is_enough_for_four_of_five_slots(chart: Chart) -> None:
    """The engine has four."""
    values = yaml.safe_load(chart.files["values.yaml"])
    assert values["scaling"]["streamsPerReplica"] == 3


def test_the_operator_gets_what_prometheus_of_compose_reads(chart: Chart) -> None:
    """The jobs that rules and dashboard name, the labels of models; nothing without an operator."""
    assert {each["kind"] for each in chart.manifests(NEWEST)}.isdisjoint(
        {"PodMonitor", "PrometheusRule"}
    )
    manifests = chart.manifests(
        NEWEST, {"monitoring": {"labels": {"release": "stack"}}}, api_versions=[OPERATOR]
    )
    jobs = {}
    for monitor in (each for each in manifests if each["kind"] == "PodMonitor"):
        assert monitor["metadata"]["labels"]["release"] == "stack"
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        [among] = monitor["spec"]["selector"]["matchExpressions"]
        component, of_slot_b = among["values"]
        assert of_slot_b == f"{component}-b"
        pod = of_kind(manifests, "Deployment", component)["spec"]["template"]["spec"]
        ports = {port["name"] for port in pod["containers"][0]["ports"]}
        assert endpoint["port"] in ports
        jobs[component] = endpoint
    assert {each["relabelings"][0]["replacement"] for each in jobs.values()} == set(jobs)
    relabeled = {each["targetLabel"] for each in jobs["triton"]["metricRelabelings"]}
    assert relabeled == {"public_model", "step"}


def test_the_operator_s_prometheus_gets_the_key_of_the_metrics(chart: Chart) -> None:
    """Out of the project's Secret, where the frontend asks for a key."""
    endpoints = []
    for needs_key in (False, True):
        values = {"frontend": {"metricsKey": needs_key}, "secrets": {"name": "keys"}}
        manifests = chart.manifests(NEWEST, values, api_versions=[OPERATOR])
        monitor = of_kind(manifests, "PodMonitor", "frontend")
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        endpoints.append(endpoint)
    assert "authorization" not in endpoints[0]
    credentials = {"name": "keys", "key": "frontend_metrics_key"}
    assert endpoints[1]["authorization"] == {"credentials": credentials}


@needs_promtool
def test_the_rules_are_valid_and_speak_of_kubernetes(chart: Chart, tmp_path: Path) -> None:
    """No runbook sends anybody to containers of a machine that is not there."""
    manifests = chart.manifests(NEWEST, api_versions=[OPERATOR])
    for name in ("recording", "alerts"):
        spec = of_kind(manifests, "PrometheusRule", name)["spec"]
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(spec), encoding="utf-8")
        done = promtool("check", "rules", file)
        assert done.returncode == 0, done.stdout
    alerts = [rule for group in spec["groups"] for rule in group["rules"] if "alert" in rule]
    assert {"TritonServerDown", "GatewayDown", "FrontendDown"} <= {each["alert"] for each in alerts}
    for alert in alerts:
        told = alert["annotations"]["runbook"]
        for word in ("docker", "tritonctl logs", "tritonctl up", "tritonctl releases rollback"):
            assert word not in told, alert["alert"]


def test_the_dashboard_is_whole(chart: Chart) -> None:
    """Grafana's sidecar gets the JSON that compose's Grafana reads."""
    board = of_kind(chart.manifests(NEWEST), "ConfigMap", "dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["tritonctl.json"])["panels"]

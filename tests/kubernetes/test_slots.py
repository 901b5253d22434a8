# SPDX-License-Identifier: Apache-2.0
"""The chart of a project that says what a user is: two slots behind one Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.envoy_process import validate
from tests.kubernetes.charts import NAME, NEWEST, OLDEST_SCHEMA, Chart, of_kind, refused
from tests.unit.conftest import Sandbox
from tritonctl.gateway.shares import TrafficSplit, parse_split
from tritonctl.releases.slots import Slot
from tritonctl.releases.store import stored_releases
from tritonctl.runtimes.kubernetes.chart import render_chart


@pytest.fixture(scope="module")
def slots(serving: Sandbox) -> Chart:
    """As `chart`, with users."""
    project = serving.load()
    settings = project.rollout.model_copy(update={"user_header": "x-user-id"})
    project = project.model_copy(update={"rollout": settings})
    return Chart(render_chart(project, stored_releases(project)[-1]))


def test_both_schemas_know_every_field(slots: Chart, tmp_path: Path) -> None:
    """And Helm has nothing to say."""
    asked = {f"1.{minor}": slots.manifests(minor) for minor in (OLDEST_SCHEMA, NEWEST)}
    assert refused(asked) == []
    assert slots.lint(tmp_path, NEWEST) == []


def test_the_chart_installs_slot_a_alone(slots: Chart, chart: Chart) -> None:
    """What is in slot b is a rollout's; its names are known, and its pods may do no more."""
    manifests = slots.manifests(NEWEST)

    def names(kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in manifests if each["kind"] == kind}

    assert names("Deployment") == {"demo-triton", "demo-gateway", "demo-frontend"}
    for kind in ("Service", "PodDisruptionBudget"):
        assert {"demo-triton", "demo-triton-b", "demo-frontend-b"} <= names(kind)
    policy = of_kind(manifests, "NetworkPolicy", "triton")["spec"]
    [among] = policy["podSelector"]["matchExpressions"]
    assert among["values"] == ["triton", "triton-b"]
    for name in ("triton", "triton-b", "frontend", "frontend-b"):
        spec = of_kind(manifests, "Service", name)["spec"]
        assert spec["selector"]["app.kubernetes.io/component"] == name
        assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert "files/routes.json" not in chart.files
    before = {each["metadata"]["name"] for each in chart.manifests(NEWEST)}
    assert not any(name.endswith("-b") for name in before)


def test_what_a_rollout_writes_goes_before_the_chart_s_routes(slots: Chart) -> None:
    """It is not the chart's: an upgrade moves nobody. Before the first one all are at slot a."""
    manifests = slots.manifests(NEWEST)
    texts = of_kind(manifests, "ConfigMap", "gateway")["data"]
    assert parse_split(texts["routes.json"], "the chart") == TrafficSplit(Slot.A, 0)
    pod = of_kind(manifests, "Deployment", "gateway")["spec"]["template"]["spec"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "routes"]
    ours, theirs = (each["configMap"] for each in volume["projected"]["sources"])
    assert (ours["name"], [each["path"] for each in ours["items"]]) == (
        "demo-gateway",
        ["routes.json"],
    )
    assert theirs == {"name": "demo-routes", "optional": True}
    assert not any(each["metadata"]["name"] == "demo-routes" for each in manifests)


def test_envoy_takes_both_slots(slots: Chart, tmp_path: Path) -> None:
    """It watches the folder of links, knows servers of both slots, and reads routes to them."""
    data = of_kind(slots.manifests(NEWEST), "ConfigMap", "gateway")["data"]
    envoy: dict[str, Any] = yaml.safe_load(data["envoy.yaml"])
    [manager] = [
        found["typed_config"]
        for listener in envoy["static_resources"]["listeners"]
        for found in listener["filter_chains"][0]["filters"]
        if "rds" in found["typed_config"]
    ]
    source = manager["rds"]["config_source"]["path_config_source"]
    assert source == {
        "path": "/etc/routes/routes.json",
        "watched_directory": {"path": "/etc/routes"},
    }
    clusters = {each["name"]: each for each in envoy["static_resources"]["clusters"]}
    for name, host in (
        ("triton_grpc_a", f"{NAME}-triton"),
        ("triton_rest_b", f"{NAME}-triton-b"),
        ("frontend_b", f"{NAME}-frontend-b"),
    ):
        [found] = clusters[name]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert found["endpoint"]["address"]["socket_address"]["address"] == host
    (tmp_path / "routes.json").write_text(data["routes.json"], encoding="utf-8")
    for name in ("alice.key", "gateway.crt", "gateway.key"):
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    text = data["envoy.yaml"].replace("/etc/routes", str(tmp_path))
    made = yaml.safe_load(text)
    for listener in made["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            chain.pop("transport_socket", None)  # its certificate is none
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump(made), encoding="utf-8")
    done = validate(file)
    assert done.returncode == 0, done.stderr

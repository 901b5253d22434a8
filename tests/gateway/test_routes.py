# SPDX-License-Identifier: Apache-2.0
"""Which route a request takes: as Envoy does, the first one that matches. No Envoy needed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tritonctl.gateway.placement import EnvoyUpstream, GatewayPlacement, SlotGroups
from tritonctl.gateway.routes import is_inference_route, routes
from tritonctl.gateway.shares import TrafficSplit, routes_text
from tritonctl.gateway.tenants import GUARD, KEYS, LIMIT
from tritonctl.project.rollout import Rollout
from tritonctl.project.server import Gateway
from tritonctl.releases.slots import Slot

FRONTEND_PATHS = ("/v1/chat/completions", "/v1/models", "/v1/models/a/b", "/v2/rerank")
TENANTS = {"alice": {"api_key_file": "alice.key", "requests_per_minute": 60}}
OPEN, CLOSED = Gateway(), Gateway.model_validate({"tenants": TENANTS})
SERVICE = "/inference.GRPCInferenceService/"
EVERYTHING = {KEYS, GUARD, LIMIT}


def route_of(
    gateway: Gateway, path: str, *, grpc: bool = False, frontend: bool = False
) -> dict[str, Any]:
    """The first route that matches."""
    made = routes(gateway, frontend=frontend)
    return next(route for route in made if _matches(route["match"], path, grpc=grpc))


def _matches(match: dict[str, Any], path: str, *, grpc: bool) -> bool:
    if "grpc" in match and not grpc:
        return False
    if "path" in match:
        return bool(path == match["path"])
    if "prefix" in match:
        return path.startswith(match["prefix"])
    return re.fullmatch(match["safe_regex"]["regex"], path) is not None


def switched_off(route: dict[str, Any]) -> set[str]:
    """The filters that leave it alone."""
    off = route.get("typed_per_filter_config", {})
    assert all(config["disabled"] for config in off.values())
    return set(off)


GRPC_PATHS = {
    f"{SERVICE}ModelInfer": set[str](),
    f"{SERVICE}ModelStreamInfer": set[str](),
    f"{SERVICE}ModelReady": {LIMIT},
    f"{SERVICE}ServerMetadata": {LIMIT},
    f"{SERVICE}ModelMetadata": {LIMIT},
    f"{SERVICE}ServerLive": EVERYTHING,
    f"{SERVICE}ServerReady": EVERYTHING,
    "/grpc.health.v1.Health/Check": EVERYTHING,
    "/grpc.health.v1.Health/Watch": EVERYTHING,
}
REST_PATHS = {
    "/v2/models/m/infer": set[str](),
    "/v2/models/m/generate": set[str](),
    "/v2/models/m/generate_stream": set[str](),
    "/v2/models/team.a-1_x/versions/12/infer": set[str](),
    "/v2": {LIMIT},
    "/v2/": {LIMIT},
    "/v2/models/m": {LIMIT},
    "/v2/models/m/ready": {LIMIT},
    "/v2/models/m/versions/3": {LIMIT},
    "/v2/models/m/versions/3/ready": {LIMIT},
    "/v2/models/statistics": {LIMIT},  # a model of that name
    "/v2/health/live": EVERYTHING,
    "/v2/health/ready": EVERYTHING,
}
REFUSED = [
    "/",
    "/metrics",
    "/v2/health",
    "/v2/health/live/",
    "/v2/models",
    "/v2/models/stats",
    "/v2/models/stats/",
    "/v2/models/stats/ready",
    "/v2/models/stats/versions/1/ready",
    "/v2/models/m/stats",
    "/v2/models/m/config",
    "/v2/models/m/versions/1/stats",
    "/v2/models/m/infer/more",
    "/v2/models//infer",
    "/v2/models/m/versions/x/infer",
    "/v2/models/a/b/infer",
    "/v2/repository/index",
    "/v2/repository/models/m/load",
    "/v2/systemsharedmemory/status",
    "/v2/trace/setting",
    "/v2/logging",
    "/x/v2/health/live",
    f"{SERVICE}ModelInfer",  # not as gRPC
    "/grpc.health.v1.Health/Check",
]
REFUSED_GRPC = [
    f"{SERVICE}{method}"
    for method in (
        "ModelConfig",
        "ModelStatistics",
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryRegister",
        "TraceSetting",
        "LogSettings",
        "ModelInfer/",
        "",
    )
]


@pytest.mark.parametrize("path", GRPC_PATHS)
def test_grpc_that_may_pass(path: str) -> None:
    """Inference with key and limit, metadata with a key, health with neither."""
    for gateway, off in ((OPEN, set[str]()), (CLOSED, GRPC_PATHS[path])):
        route = route_of(gateway, path, grpc=True)
        assert route["route"]["cluster"] == "triton_grpc"
        assert switched_off(route) == off


@pytest.mark.parametrize("path", REST_PATHS)
def test_rest_that_may_pass(path: str) -> None:
    """As gRPC; who watches the health has no key."""
    for gateway, off in ((OPEN, set[str]()), (CLOSED, REST_PATHS[path])):
        route = route_of(gateway, path)
        assert route["route"]["cluster"] == "triton_rest"
        assert switched_off(route) == off


@pytest.mark.parametrize("path", FRONTEND_PATHS)
def test_the_frontend_s(path: str) -> None:
    """It counts by itself; keys are the gateway's business only where it has its secret."""
    telling = CLOSED.model_copy(update={"frontend_secret_file": "secret"})
    for gateway, off in ((OPEN, set[str]()), (CLOSED, EVERYTHING), (telling, {LIMIT})):
        route = route_of(gateway, path, frontend=True)
        assert route["route"]["cluster"] == "frontend"
        assert switched_off(route) == off
        assert route_of(gateway, path)["direct_response"]["status"] == 403
        for other in ("/v1", "/health/ready", "/metrics"):
            assert "direct_response" in route_of(gateway, other, frontend=True)


def test_preflights_of_a_rollout_keep_their_method() -> None:
    """A route without filters is for OPTIONS alone, however requests are split."""
    closed = CLOSED.model_copy(update={"frontend_secret_file": "secret"})
    settings = Rollout(user_header="x-user-id")
    placement = GatewayPlacement(
        upstreams=(EnvoyUpstream("127.0.0.1", 9001, 9000),),
        address="127.0.0.1",
        port=8080,
        admin_address="127.0.0.1",
        admin_port=8081,
        secrets={"gateway_api_key_alice": "/alice", "gateway_frontend_secret": "/secret"},
        frontend=("127.0.0.1", 9004),
        cors=True,
        slots=SlotGroups(Slot.A, "/routes.json", "/endpoints"),
    )
    text = routes_text(closed, placement, settings, TrafficSplit(Slot.A, 5))
    (resource,) = json.loads(text)["resources"]
    (host,) = resource["virtual_hosts"]
    open_routes = [
        route
        for route in host["routes"]
        if route["match"].get("prefix") == "/v1/" and KEYS in switched_off(route)
    ]
    assert len(open_routes) == 4
    for route in open_routes:
        methods = [each for each in route["match"]["headers"] if each["name"] == ":method"]
        assert methods == [{"name": ":method", "string_match": {"exact": "OPTIONS"}}]
        assert not is_inference_route(route["match"])


@pytest.mark.parametrize("gateway", [OPEN, CLOSED], ids=["open", "tenants"])
@pytest.mark.parametrize(
    ("path", "grpc"),
    [*((path, False) for path in REFUSED), *((path, True) for path in REFUSED_GRPC)],
)
def test_everything_else_is_refused(path: str, grpc: bool, gateway: Gateway) -> None:
    """403, with the reason; whoever has no key learns only that."""
    route = route_of(gateway, path, grpc=grpc)
    assert route["direct_response"]["status"] == 403
    assert "not through the gateway" in route["direct_response"]["body"]["inline_string"]
    assert switched_off(route) == set()


def test_the_last_route_takes_what_is_left() -> None:
    """None before it is so broad that those behind it are never reached."""
    made = routes(CLOSED)
    assert [route["match"].get("prefix") for route in made] == [None] * (len(made) - 1) + ["/"]
    reached = [route_of(CLOSED, path, grpc=True) for path in GRPC_PATHS]
    reached += [route_of(CLOSED, path) for path in [*REST_PATHS, *REFUSED]]
    assert [route for route in made if route not in reached] == []


@pytest.mark.parametrize(("retries", "grpc"), [(0, True), (0, False), (3, True), (3, False)])
def test_retries(retries: int, grpc: bool) -> None:
    """Only of what no server has begun to answer; as often as the project says."""
    path = f"{SERVICE}ModelStreamInfer" if grpc else "/v2/models/m/generate_stream"
    route = route_of(Gateway(retries=retries), path, grpc=grpc)["route"]
    assert route["timeout"] == "0s"
    if not retries:
        assert "retry_policy" not in route
        return
    policy = route["retry_policy"]
    assert policy["num_retries"] == retries
    assert set(policy["retry_on"].split(",")) == {
        "connect-failure",
        "refused-stream",
        "reset",
        "unavailable" if grpc else "gateway-error",
    }

# SPDX-License-Identifier: Apache-2.0
"""The gateway's routes: inference, health and metadata. It refuses everything else.

Model control, shared memory, logging, tracing, configurations and statistics are for the
server's operators, who reach it directly.
"""

from __future__ import annotations

from tritonctl.gateway.clusters import FRONTEND, GRPC, TRITON_REST, Message, typed
from tritonctl.gateway.tenants import GUARD, KEYS, LIMIT, disable_filters
from tritonctl.project.server import Gateway

_SERVICE = "/inference.GRPCInferenceService/"
INFERENCE_METHODS = ("ModelInfer", "ModelStreamInfer")
METADATA_METHODS = ("ModelReady", "ServerMetadata", "ModelMetadata")
HEALTH_METHODS = ("ServerLive", "ServerReady")
HEALTH_SERVICE = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
_MODEL = r"/v2/models/[A-Za-z0-9_.-]+(/versions/[0-9]+)?"
_INFERENCE = rf"{_MODEL}/(infer|generate|generate_stream)"
_METADATA = rf"/v2/?|{_MODEL}(/ready)?"
_HEALTH = "/v2/health/(live|ready)"
_OPENAI = ({"prefix": "/v1/"}, {"path": "/v2/rerank"})
_PREFLIGHT_METHOD: Message = {"name": ":method", "string_match": {"exact": "OPTIONS"}}
# The path for statistics of all models looks like the metadata path of a model.
_NO_MODEL = r"/v2/models/stats(/.*)?"
# Before the first token only: Envoy cannot retry once it has forwarded a server's headers.
_RETRY_ON = {
    GRPC: "connect-failure,refused-stream,reset,unavailable",
    TRITON_REST: "connect-failure,refused-stream,reset,gateway-error",
    # The client gets the frontend's answer: a 503 may concern its tenant or model.
    FRONTEND: "connect-failure,refused-stream,reset",
}
_REFUSAL = "not through the gateway: only inference, health and metadata are; ask Triton directly"


def routes(gateway: Gateway, *, frontend: bool = False, cors: bool = False) -> list[Message]:
    """Return the routes in the order in which Envoy tries them.

    cors: whether the frontend answers web pages of other origins.
    """
    unlimited, exempt = {}, {}
    if gateway.tenants:
        unlimited = {"typed_per_filter_config": disable_filters(LIMIT)}
        exempt = {"typed_per_filter_config": disable_filters(KEYS, GUARD, LIMIT)}
    health = [*(_SERVICE + method for method in HEALTH_METHODS), *HEALTH_SERVICE]
    return [
        *(_grpc(_SERVICE + method, gateway) for method in INFERENCE_METHODS),
        *(_grpc(_SERVICE + method, gateway) | unlimited for method in METADATA_METHODS),
        *(_grpc(path, gateway) | exempt for path in health),
        _refusal_route({"safe_regex": {"regex": _NO_MODEL}}),
        _rest_route(_INFERENCE, gateway),
        _rest_route(_METADATA, gateway) | unlimited,
        _rest_route(_HEALTH, gateway) | exempt,
        *(_preflights(gateway) if frontend and cors else []),
        *(_openai(gateway) if frontend else []),
        _refusal_route({"prefix": "/"}),
    ]


def is_inference_route(match: Message) -> bool:
    """Whether a route with this match is for inference, not for metadata."""
    paths = {_SERVICE + method for method in INFERENCE_METHODS}
    pattern = match.get("safe_regex", {}).get("regex")
    if _PREFLIGHT_METHOD in match.get("headers", ()):
        return False
    return (
        match.get("path") in paths
        or pattern == _INFERENCE
        or any(match.items() >= openai_match.items() for openai_match in _OPENAI)
    )


def _grpc(path: str, gateway: Gateway) -> Message:
    return {"match": {"path": path, "grpc": {}}, "route": _route(GRPC, gateway)}


def _rest_route(pattern: str, gateway: Gateway) -> Message:
    return {"match": {"safe_regex": {"regex": pattern}}, "route": _route(TRITON_REST, gateway)}


def _openai(gateway: Gateway) -> list[Message]:
    """Routes to the frontend, which counts requests and refuses them in OpenAI's format.

    Without the gateway's secret it also checks API keys.
    """
    filter_overrides: Message = {}
    if gateway.tenants:
        disabled_filters = (
            (LIMIT,) if gateway.frontend_secret_file is not None else (KEYS, GUARD, LIMIT)
        )
        filter_overrides = {"typed_per_filter_config": disable_filters(*disabled_filters)}
    return [
        {"match": match, "route": _route(FRONTEND, gateway)} | filter_overrides for match in _OPENAI
    ]


def _preflights(gateway: Gateway) -> list[Message]:
    """Routes for a browser's question whether a page may send a request: it has no key."""
    headers = [
        _PREFLIGHT_METHOD,
        {"name": "access-control-request-method", "present_match": True},
    ]
    exempt: Message = {}
    if gateway.tenants:
        exempt = {"typed_per_filter_config": disable_filters(KEYS, GUARD, LIMIT)}
    return [
        {"match": {**match, "headers": headers}, "route": _route(FRONTEND, gateway)} | exempt
        for match in _OPENAI
    ]


def _route(cluster: str, gateway: Gateway) -> Message:
    route: Message = {"cluster": cluster, "timeout": "0s"}  # responses have no time limit
    if gateway.retries:
        route["retry_policy"] = _retry_policy(cluster, gateway)
    return route


def _retry_policy(cluster: str, gateway: Gateway) -> Message:
    previous_hosts = typed("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate")
    return {
        "retry_on": _RETRY_ON[cluster],
        "num_retries": gateway.retries,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
        "retry_host_predicate": [
            {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": previous_hosts}
        ],
        # With two hosts, each attempt picks the dead one again with a probability of 3/4.
        "host_selection_retry_max_attempts": 20,
    }


def _refusal_route(match: Message) -> Message:
    body = {"inline_string": _REFUSAL}
    return {"match": match, "direct_response": {"status": 403, "body": body}}

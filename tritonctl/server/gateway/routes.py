# SPDX-License-Identifier: Apache-2.0
"""What may pass the gateway: inference, health and metadata. It refuses everything else.

Model control, shared memory, logging, tracing, configurations and statistics are for the
server's operators, who reach it directly.
"""

from __future__ import annotations

from tritonctl.project.server import Gateway
from tritonctl.server.gateway.clusters import FRONTEND, GRPC, REST, Message, typed
from tritonctl.server.gateway.tenants import GUARD, KEYS, LIMIT, switched_off

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
# The statistics of all models look like the metadata of one.
_NO_MODEL = r"/v2/models/stats(/.*)?"
# Before the first token only: once a server's headers are through, Envoy cannot retry any more.
_RETRY_ON = {
    GRPC: "connect-failure,refused-stream,reset,unavailable",
    REST: "connect-failure,refused-stream,reset,gateway-error",
    # What it answers is for the client: 503 may be a tenant's, a model's.
    FRONTEND: "connect-failure,refused-stream,reset",
}
_REFUSAL = "not through the gateway: only inference, health and metadata are; ask Triton directly"


def routes(gateway: Gateway, *, frontend: bool = False) -> list[Message]:
    """In the order in which Envoy tries them; frontend: whether there is one."""
    unlimited, exempt = {}, {}
    if gateway.tenants:
        unlimited = {"typed_per_filter_config": switched_off(LIMIT)}
        exempt = {"typed_per_filter_config": switched_off(KEYS, GUARD, LIMIT)}
    health = [*(_SERVICE + method for method in HEALTH_METHODS), *HEALTH_SERVICE]
    return [
        *(_grpc(_SERVICE + method, gateway) for method in INFERENCE_METHODS),
        *(_grpc(_SERVICE + method, gateway) | unlimited for method in METADATA_METHODS),
        *(_grpc(path, gateway) | exempt for path in health),
        _refused({"safe_regex": {"regex": _NO_MODEL}}),
        _rest(_INFERENCE, gateway),
        _rest(_METADATA, gateway) | unlimited,
        _rest(_HEALTH, gateway) | exempt,
        *(_openai(gateway) if frontend else []),
        _refused({"prefix": "/"}),
    ]


def asks_a_model(match: Message) -> bool:
    """Whether a route with this match is for questions to models, not for their metadata."""
    paths = {_SERVICE + method for method in INFERENCE_METHODS}
    pattern = match.get("safe_regex", {}).get("regex")
    return (
        match.get("path") in paths
        or pattern == _INFERENCE
        or any(match.items() >= one.items() for one in _OPENAI)
    )


def _grpc(path: str, gateway: Gateway) -> Message:
    return {"match": {"path": path, "grpc": {}}, "route": _route(GRPC, gateway)}


def _rest(pattern: str, gateway: Gateway) -> Message:
    return {"match": {"safe_regex": {"regex": pattern}}, "route": _route(REST, gateway)}


def _openai(gateway: Gateway) -> list[Message]:
    """The frontend refuses by itself, in OpenAI's shape: it counts requests, and without the
    gateway's secret it looks at keys.
    """
    more: Message = {}
    if gateway.tenants:
        off = (LIMIT,) if gateway.frontend_secret_file is not None else (KEYS, GUARD, LIMIT)
        more = {"typed_per_filter_config": switched_off(*off)}
    return [{"match": match, "route": _route(FRONTEND, gateway)} | more for match in _OPENAI]


def _route(cluster: str, gateway: Gateway) -> Message:
    route: Message = {"cluster": cluster, "timeout": "0s"}  # answers may take as long as they take
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
        # Each may choose the dead one again with a chance of three in four, of two.
        "host_selection_retry_max_attempts": 20,
    }


def _refused(match: Message) -> Message:
    body = {"inline_string": _REFUSAL}
    return {"match": match, "direct_response": {"status": 403, "body": body}}

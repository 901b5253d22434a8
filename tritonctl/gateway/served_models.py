# SPDX-License-Identifier: Apache-2.0
"""Streams through the gateway reach only models that the servers serve.

tritonserver 2.51 crashes on requests for unknown models or versions on one stream. Envoy's built-in
filter for gRPC fields (grpc_field_extraction) reads the first message of a stream, and a stream
carries many. Two Lua scripts ask Triton for its models and read every message; a built-in filter
lets no stream pass that they did not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tritonctl.gateway.clusters import Message, typed

NAMES, MODELS, GUARD = "tritonctl.model_names", "tritonctl.served_models", "tritonctl.models_guard"
_FILTERS = "envoy.extensions.filters.http"
_CHECKED = "checked"  # in the dynamic metadata that served_models.lua writes
STREAM_METHOD = "ModelStreamInfer"


def served_models_filters() -> list[Message]:
    """Return the filters that refuse other models on a stream."""
    return [_lua(NAMES, "model_names.lua"), _lua(MODELS, "served_models.lua"), _guard()]


def _lua(name: str, file: str) -> Message:
    script = Path(__file__).with_name(file).read_text(encoding="utf-8")
    config = typed(f"{_FILTERS}.lua.v3.Lua", default_source_code={"inline_string": script})
    return {"name": name, "typed_config": config}


def _guard() -> Message:
    """The filter that refuses streams which the scripts have not read, also when they fail."""
    checked = {"filter": MODELS, "path": [{"key": _CHECKED}], "value": {"present_match": True}}
    is_checked = {"sourced_metadata": {"metadata_matcher": checked, "metadata_source": "DYNAMIC"}}
    is_stream = {"url_path": {"path": {"suffix": f"/{STREAM_METHOD}"}}}
    policies = {
        "streams": {"permissions": [is_stream], "principals": [is_checked]},
        "others": {"permissions": [{"not_rule": is_stream}], "principals": [{"any": True}]},
    }
    rules = {"action": "ALLOW", "policies": policies}
    return {"name": GUARD, "typed_config": typed(f"{_FILTERS}.rbac.v3.RBAC", rules=rules)}


def is_stream_route(route: Message) -> bool:
    """Whether a route is for gRPC streams of inference requests."""
    return str(route["match"].get("path", "")).endswith(f"/{STREAM_METHOD}")


def with_served_models(route: Message, rest_clusters: Sequence[str]) -> Message:
    """Return the route with the clusters that the script asks for their models.

    A model must be served by each of them: any may get the stream.
    """
    filter_metadata = {
        **route.get("metadata", {}).get("filter_metadata", {}),
        NAMES: {"clusters": [*rest_clusters]},
        MODELS: {"clusters": [*rest_clusters]},
    }
    return route | {"metadata": {"filter_metadata": filter_metadata}}

# SPDX-License-Identifier: Apache-2.0
"""Tenants: an API key each, which Envoy reads from a file, and a limit on requests per minute.

Envoy's filter for API keys (api_key_auth) takes them only inline, and a configuration must not hold
keys. A short Lua script looks up the tenant; a built-in filter of Envoy enforces the result.
"""

from __future__ import annotations

from pathlib import Path

from tritonctl.gateway.clusters import Message, typed
from tritonctl.gateway.placement import FRONTEND_SECRET, GatewayPlacement, api_key_secret
from tritonctl.project.server import Gateway, Tenant

KEYS, GUARD, LIMIT = "tritonctl.tenants", "tritonctl.guard", "tritonctl.limit"
TENANT = "tenant"  # in the dynamic metadata that tenants.lua writes
_FILTERS = "envoy.extensions.filters.http"
_MINUTE = "60s"


def tenant_filters(gateway: Gateway) -> list[Message]:
    """Return filters that identify the tenant, refuse other clients and limit the rate.

    Empty for an open gateway.
    """
    if not gateway.tenants:
        return []
    script = Path(__file__).with_suffix(".lua").read_text(encoding="utf-8")
    keys = typed(f"{_FILTERS}.lua.v3.Lua", default_source_code={"inline_string": script})
    filters = [{"name": KEYS, "typed_config": keys}, _guard()]
    limited = {
        name: tenant
        for name, tenant in gateway.tenants.items()
        if tenant.requests_per_minute is not None
    }
    return [*filters, _limit(limited)]


def tenant_metadata(
    gateway: Gateway, placement: GatewayPlacement, *, frontend: bool, inference: bool
) -> Message:
    """Return the paths of the tenants' keys, as Envoy sees them, for tenants.lua.

    frontend: whether the route leads to the frontend. inference: whether it is for inference.
    """
    if not gateway.tenants:
        return {}
    metadata: Message = {
        "api_key_files": {name: placement.secrets[api_key_secret(name)] for name in gateway.tenants}
    }
    if frontend and FRONTEND_SECRET in placement.secrets:
        metadata["frontend_secret_file"] = placement.secrets[FRONTEND_SECRET]
    if inference and not frontend:
        metadata["frontend_only"] = {
            name: True for name, tenant in gateway.tenants.items() if tenant.is_frontend_only
        }
    return {"metadata": {"filter_metadata": {KEYS: metadata}}}


def disable_filters(*filters: str) -> Message:
    """Return `typed_per_filter_config` that disables these filters for a route."""
    return {name: typed("envoy.config.route.v3.FilterConfig", disabled=True) for name in filters}


def _guard() -> Message:
    """The filter that refuses requests without a tenant, also when the Lua script fails."""
    tenant_matcher = {"filter": KEYS, "path": [{"key": TENANT}], "value": {"present_match": True}}
    tenant = {
        "sourced_metadata": {"metadata_matcher": tenant_matcher, "metadata_source": "DYNAMIC"}
    }
    policy = {"permissions": [{"any": True}], "principals": [tenant]}
    rules = {"action": "ALLOW", "policies": {"tenants": policy}}
    return {"name": GUARD, "typed_config": typed(f"{_FILTERS}.rbac.v3.RBAC", rules=rules)}


def _limit(tenants: dict[str, Tenant]) -> Message:
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    source = {"key": KEYS, "path": [{"key": TENANT}]}
    action = {"metadata": {"descriptor_key": TENANT, "metadata_key": source, "source": "DYNAMIC"}}
    config = typed(
        f"{_FILTERS}.local_ratelimit.v3.LocalRateLimit",
        stat_prefix="tenants",
        filter_enabled=always,
        filter_enforced=always,
        rate_limits=[{"actions": [action]}],
        descriptors=[_descriptor(name, tenant) for name, tenant in tenants.items()],
        rate_limited_as_resource_exhausted=True,
        always_consume_default_token_bucket=False,
    )
    return {"name": LIMIT, "typed_config": config}


def _descriptor(name: str, tenant: Tenant) -> Message:
    bucket = {
        "max_tokens": tenant.burst or tenant.requests_per_minute,
        "tokens_per_fill": tenant.requests_per_minute,
        "fill_interval": _MINUTE,
    }
    return {"entries": [{"key": TENANT, "value": name}], "token_bucket": bucket}

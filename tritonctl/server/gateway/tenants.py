# SPDX-License-Identifier: Apache-2.0
"""Tenants: an API key each, read by Envoy from its file, and how many requests a minute.

Envoy's own filter for API keys (api_key_auth) takes them inline only, and a configuration is no
place for keys. A few lines of Lua look them up; what they find, a filter of Envoy's own enforces.
"""

from __future__ import annotations

from pathlib import Path

from tritonctl.project.server import Gateway, Tenant
from tritonctl.server.gateway.clusters import Message, typed
from tritonctl.server.gateway.placement import FRONTEND_SECRET, Placement, api_key

KEYS, GUARD, LIMIT = "tritonctl.tenants", "tritonctl.guard", "tritonctl.limit"
TENANT = "tenant"  # in the dynamic metadata that tenants.lua writes
_FILTERS = "envoy.extensions.filters.http"
_MINUTE = "60s"


def tenant_filters(gateway: Gateway) -> list[Message]:
    """Identify the tenant, refuse others, limit the rate; nothing for an open gateway."""
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


def tenant_metadata(gateway: Gateway, placement: Placement, *, frontend: bool) -> Message:
    """For tenants.lua: where each tenant's key is, as Envoy sees it; frontend: of its route."""
    if not gateway.tenants:
        return {}
    told: Message = {
        "api_key_files": {name: placement.secrets[api_key(name)] for name in gateway.tenants}
    }
    if frontend and FRONTEND_SECRET in placement.secrets:
        told["frontend_secret_file"] = placement.secrets[FRONTEND_SECRET]
    return {"metadata": {"filter_metadata": {KEYS: told}}}


def switched_off(*filters: str) -> Message:
    """`typed_per_filter_config` of a route that these filters leave alone."""
    return {name: typed("envoy.config.route.v3.FilterConfig", disabled=True) for name in filters}


def _guard() -> Message:
    """Envoy lets a request pass when a script fails; this does not."""
    known = {"filter": KEYS, "path": [{"key": TENANT}], "value": {"present_match": True}}
    tenant = {"sourced_metadata": {"metadata_matcher": known, "metadata_source": "DYNAMIC"}}
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

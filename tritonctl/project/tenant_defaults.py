# SPDX-License-Identifier: Apache-2.0
"""Defaults of models that depend on the gateway's tenants."""

from __future__ import annotations

from typing import Any

_SEVERAL = 2
_NO_PREFIX_CACHE = {"enable_prefix_caching": False}


def share_no_prefix_cache(data: Any) -> Any:
    """Return unvalidated project data in which several tenants share no prefix cache.

    A model whose section sets `serving.enable_prefix_caching` keeps it.
    """
    if len(_section(_section(data, "gateway"), "tenants")) < _SEVERAL:
        return data
    models = {
        name: {**model, "serving": {**_NO_PREFIX_CACHE, **_section(model, "serving")}}
        if isinstance(model, dict) and isinstance(model.get("serving", {}), dict)
        else model
        for name, model in _section(data, "models").items()
    }
    return {**data, "models": models} if models else data


def _section(data: Any, name: str) -> dict[str, Any]:
    """Return a section of unvalidated data; empty if there is none."""
    section = data.get(name) if isinstance(data, dict) else None
    return section if isinstance(section, dict) else {}

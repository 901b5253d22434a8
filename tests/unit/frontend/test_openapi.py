# SPDX-License-Identifier: Apache-2.0
"""The description of the API is that of the models and routes that there are."""

from __future__ import annotations

import json
from typing import Any

from starlette.routing import Route

from tests.unit.frontend.conftest import Served, config_of
from tritonctl.frontend.app import build_app
from tritonctl.frontend.chat import ChatRequest

UNDESCRIBED = {"/openapi.json", "/metrics"}


def test_every_route_is_described(frontend: Served) -> None:
    """And no other."""
    described = set(frontend.http.get("/openapi.json").json()["paths"])
    routes = {
        route.path.replace(":path", "")
        for route in build_app(config_of()).routes
        if isinstance(route, Route)
    }
    assert described == routes - UNDESCRIBED


def test_fields_are_those_that_are_accepted(frontend: Served) -> None:
    """Of a conversation; nothing else is."""
    page = frontend.http.get("/openapi.json").json()
    chat = page["components"]["schemas"]["ChatRequest"]
    assert set(chat["properties"]) == set(ChatRequest.model_fields)
    assert chat["additionalProperties"] is False
    assert all("description" in field for field in chat["properties"].values())
    assert chat["required"] == ["model", "messages"]


def test_every_reference_leads_somewhere(frontend: Served) -> None:
    """Models inside models are there, too."""
    page = frontend.http.get("/openapi.json").json()
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            value = list(value.values())
        for one in value if isinstance(value, list) else []:
            look(one)

    look(page)
    assert len(set(found)) > 5
    for reference in set(found):
        place: Any = page
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    assert "$defs" not in json.dumps(page)

# SPDX-License-Identifier: Apache-2.0
"""Health of a running server over HTTP: the server itself and each model it serves."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from tritonctl.protocol.model_config import Config
from tritonctl.protocol.restrictions import http_headers
from tritonctl.runtimes.server_state import Server

_TIMEOUT_SECONDS = 2.0
_OK = 200
_UNLOADED = "unloaded"
_READY, FROZEN = "READY", "FROZEN"


@dataclass(frozen=True)
class ServerHealth:
    """Liveness of a server and the state of its models."""

    live: bool
    models: dict[str, str]  # model to Triton's state, such as READY, or FROZEN

    @property
    def ready(self) -> bool:
        """Whether the server answers and every model is ready."""
        return self.live and all(state == _READY for state in self.models.values())

    def count_ready(self) -> int:
        """Count the ready models."""
        return sum(state == _READY for state in self.models.values())

    def with_frozen(self, frozen: Iterable[str]) -> ServerHealth:
        """Mark models that make no progress, which Triton calls ready."""
        states = {name: FROZEN for name in frozen if self.models.get(name) == _READY}
        return replace(self, models=self.models | states)

    def summary(self) -> str:
        """Return "N of M models ready"."""
        return f"{self.count_ready()} of {len(self.models)} models ready"


def check_health(state: Server) -> ServerHealth:
    """Query the server. A server that does not answer is not live and has no ready model."""
    index = _request_json(state, "POST", "/v2/repository/index")
    if not isinstance(index, list):
        return ServerHealth(live=False, models=dict.fromkeys(state.models, "UNKNOWN"))
    # Unloaded versions stay in the index, before or after the live version.
    unloaded_first = sorted(index, key=lambda entry: entry.get("reason") != _UNLOADED)
    states = {entry["name"]: entry.get("state", "LOADING") for entry in unloaded_first}
    return ServerHealth(
        live=True, models={name: states.get(name, "MISSING") for name in state.models}
    )


def live_configs(state: Server, names: Iterable[str]) -> dict[str, Config]:
    """Return each model's live configuration; models without an answer are left out."""
    answers = {
        name: _request_json(state, "GET", f"/v2/models/{quote(name)}/config") for name in names
    }
    return {name: config for name, config in answers.items() if isinstance(config, dict)}


def _request_json(state: Server, method: str, path: str) -> Any:
    """Return the JSON of the server's response; None without one."""
    connection = http.client.HTTPConnection(
        state.http_address, state.http_port, timeout=_TIMEOUT_SECONDS
    )
    try:
        headers = http_headers(state.token)
        body = b"{}" if method == "POST" else None
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        payload = response.read()
        return json.loads(payload) if response.status == _OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None  # not listening yet, or no longer
    finally:
        connection.close()

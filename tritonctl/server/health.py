# SPDX-License-Identifier: Apache-2.0
"""Health of a running server over HTTP: the server itself and each model it serves."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tritonctl.protocol.model_config import Config
from tritonctl.protocol.restrictions import http_headers
from tritonctl.server.state import Server

_TIMEOUT_SECONDS = 2.0
_OK = 200
_UNLOADED = "unloaded"


@dataclass(frozen=True)
class Health:
    """`models` maps each model of the project to Triton's state for it, READY being good."""

    live: bool
    models: dict[str, str]

    @property
    def ready(self) -> bool:
        """Whether the server answers and every model is ready."""
        return self.live and all(state == "READY" for state in self.models.values())

    def count_ready(self) -> int:
        """How many models are ready."""
        return sum(state == "READY" for state in self.models.values())

    def summary(self) -> str:
        """The same, of how many."""
        return f"{self.count_ready()} of {len(self.models)} models ready"


def health(state: Server) -> Health:
    """Ask the server. One that does not answer is not live, and none of its models is ready."""
    index = _asked(state, "POST", "/v2/repository/index")
    if not isinstance(index, list):
        return Health(live=False, models=dict.fromkeys(state.models, "UNKNOWN"))
    # Versions that were unloaded stay in the index, before or behind the one that is served.
    unloaded_first = sorted(index, key=lambda entry: entry.get("reason") != _UNLOADED)
    known = {entry["name"]: entry.get("state", "LOADING") for entry in unloaded_first}
    return Health(live=True, models={name: known.get(name, "MISSING") for name in state.models})


def live_configs(state: Server, names: Iterable[str]) -> dict[str, Config]:
    """The configuration that the server uses of each model; without those that do not answer."""
    answers = {name: _asked(state, "GET", f"/v2/models/{quote(name)}/config") for name in names}
    return {name: config for name, config in answers.items() if isinstance(config, dict)}


def _asked(state: Server, method: str, path: str) -> Any:
    """The JSON that the server answers with; None where it does not."""
    connection = http.client.HTTPConnection(
        state.http_address, state.http_port, timeout=_TIMEOUT_SECONDS
    )
    try:
        headers = http_headers(state.token)
        body = b"{}" if method == "POST" else None
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        said = answer.read()
        return json.loads(said) if answer.status == _OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None  # not listening yet, or not any more
    finally:
        connection.close()

# SPDX-License-Identifier: Apache-2.0
"""Health of a running server over HTTP: the server itself and each model it serves."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass

from tritonctl.protocol.restrictions import http_headers
from tritonctl.server.state import Server

_TIMEOUT_SECONDS = 2.0
_OK = 200


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
    index = _repository_index(state)
    if index is None:
        return Health(live=False, models=dict.fromkeys(state.models, "UNKNOWN"))
    known = {entry["name"]: entry.get("state", "LOADING") for entry in index}
    return Health(live=True, models={name: known.get(name, "MISSING") for name in state.models})


def _repository_index(state: Server) -> list[dict[str, str]] | None:
    """Triton's model repository extension: POST v2/repository/index."""
    connection = http.client.HTTPConnection(
        state.http_address, state.http_port, timeout=_TIMEOUT_SECONDS
    )
    try:
        headers = http_headers(state.token)
        connection.request("POST", "/v2/repository/index", body=b"{}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        return json.loads(body) if answer.status == _OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None  # not listening yet, or not any more
    finally:
        connection.close()

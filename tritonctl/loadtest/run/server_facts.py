# SPDX-License-Identifier: Apache-2.0
"""What `facts.json` of a run holds: server, model configurations, machine, versions.

What a server does not answer (another implementation, one behind a proxy) is left out; the load
generator finds out whether it can be tested at all.
"""

from __future__ import annotations

import json
import platform
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

from tritonctl.errors import TritonctlError
from tritonctl.host.resources import host_memory, usable_cores
from tritonctl.host.version import __version__
from tritonctl.loadtest.run.plan import slo_of
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.http import open_url
from tritonctl.protocol.model_config import steps_of

_TIMEOUT_SECONDS = 5.0
_INDEX = "/v2/repository/index"
_UNKNOWN = "unknown model"  # Triton's words


# Asks for a model's configuration, or (None) for the server's metadata; None without an answer.
_Ask = Callable[[str | None], dict[str, Any] | None]


def server_facts(protocol: str, endpoint: Endpoint, model: str) -> dict[str, Any]:
    """`server`, `models` and `ensemble` of facts.json."""
    if protocol == "http":
        return _answers(partial(_ask_http, endpoint), model)
    with Connection(endpoint) as connection:
        return _answers(partial(_ask_grpc, connection), model)


def index_of(protocol: str, endpoint: Endpoint) -> list[str] | None:
    """The models of a server by its repository index; None where it does not tell them."""
    if protocol == "http":
        listed = _open_http(endpoint, _INDEX, b"{}")
    else:
        with Connection(endpoint) as connection:
            listed = _index_grpc(connection)
    named = listed if isinstance(listed, list) else []
    return sorted({str(entry["name"]) for entry in named if "name" in entry}) or None


def is_unknown(protocol: str, endpoint: Endpoint, model: str) -> bool:
    """Whether the server says that it has no such model; one that does not tell has it perhaps."""
    if protocol == "http":
        return _UNKNOWN in str(_open_http(endpoint, f"/v2/models/{model}", refusals=True))
    with Connection(endpoint) as connection:
        try:
            connection.ask(service_pb2.ModelMetadataRequest(name=model), seconds=_TIMEOUT_SECONDS)
        except TritonctlError as error:
            return _UNKNOWN in error.problem
    return False


def _index_grpc(connection: Connection) -> Any:
    try:
        request = service_pb2.RepositoryIndexRequest()
        answer = connection.ask(request, seconds=_TIMEOUT_SECONDS, admin=True)
    except TritonctlError:
        return None
    return MessageToDict(answer).get("models")


def _ask_grpc(connection: Connection, model: str | None) -> dict[str, Any] | None:
    request: Any = service_pb2.ServerMetadataRequest()
    if model is not None:
        request = service_pb2.ModelConfigRequest(name=model)
    try:
        answer = connection.ask(request, seconds=_TIMEOUT_SECONDS)
    except TritonctlError:
        return None
    record: dict[str, Any] = MessageToDict(answer, preserving_proto_field_name=True)
    return record if model is None else record.get("config")


def _ask_http(endpoint: Endpoint, model: str | None) -> dict[str, Any] | None:
    path = "/v2" if model is None else f"/v2/models/{model}/config"
    record: dict[str, Any] | None = _open_http(endpoint, path)
    return record


def _open_http(
    endpoint: Endpoint, path: str, body: bytes | None = None, *, refusals: bool = False
) -> Any:
    """The JSON that the server answers with; None where it does not, or refuses.

    refusals: take what it says when it refuses, too.
    """
    url = endpoint.url if "://" in endpoint.url else f"http://{endpoint.url}"
    request = urllib.request.Request(url.rstrip("/") + path, body)  # noqa: S310
    for name, value in endpoint.metadata:
        request.add_unredirected_header(name, value)  # a key must not follow redirects
    try:
        try:
            with open_url(request, _TIMEOUT_SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            return json.loads(refused.read()) if refusals else None
    except (OSError, ValueError):
        return None


def _answers(ask: _Ask, model: str) -> dict[str, Any]:
    metadata = ask(None)
    configs: dict[str, Any] = {}
    _collect(ask, model, configs)
    return {
        "server": metadata
        and {name: metadata.get(name) for name in ("name", "version", "extensions")},
        "models": configs,
        "ensemble": steps_of(configs.get(model, {})),
    }


def _collect(ask: _Ask, model: str, configs: dict[str, Any]) -> None:
    """The configurations of a model and of the steps that it is composed of."""
    config = ask(model)
    if config is None or model in configs:
        return
    configs[model] = config
    for step in steps_of(config):
        _collect(ask, step, configs)


def facts(
    project: Project,
    name: str,
    scenario: Scenario,
    protocol: str,
    endpoint: Endpoint,
    profile: str | None,
) -> dict[str, Any]:
    """All facts that are known before the run, also of the machine that sends the load."""
    return {
        "tritonctl": __version__,
        "project": str(project.root),
        "profile": profile,
        "scenario": name,
        **server_facts(protocol, endpoint, scenario.model),
        "host": {
            "cpus": usable_cores(),
            "memory_bytes": host_memory(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "slo": slo_of(project, scenario).model_dump(),
    }

# SPDX-License-Identifier: Apache-2.0
"""Collect `facts.json` of a run: server, model configurations, machine, versions.

A server may not answer some requests (another implementation, or a proxy in front). The facts then
lack these fields; the load generator finds out whether a test is possible at all.
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
from tritonctl.loadtest.run.plan import effective_slo
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.http import open_url
from tritonctl.protocol.model_config import steps_of

_TIMEOUT_SECONDS = 5.0
_INDEX = "/v2/repository/index"
_UNKNOWN_MODEL = "unknown model"  # Triton's words


# Requests a model's configuration or, for None, the server's metadata; None without a response.
_FactQuery = Callable[[str | None], dict[str, Any] | None]


def server_facts(protocol: str, endpoint: Endpoint, model: str) -> dict[str, Any]:
    """Return `server`, `models` and `ensemble` of facts.json."""
    if protocol == "http":
        return _query_facts(partial(_query_http, endpoint), model)
    with Connection(endpoint) as connection:
        return _query_facts(partial(_query_grpc, connection), model)


def list_models(protocol: str, endpoint: Endpoint) -> list[str] | None:
    """Return the models in a server's repository index; None if the server withholds it."""
    if protocol == "http":
        index = _open_http(endpoint, _INDEX, b"{}")
    else:
        with Connection(endpoint) as connection:
            index = _index_grpc(connection)
    entries = index if isinstance(index, list) else []
    return sorted({str(entry["name"]) for entry in entries if "name" in entry}) or None


def lacks_model(protocol: str, endpoint: Endpoint, model: str) -> bool:
    """Whether the server reports that it lacks the model; False if it reports nothing."""
    if protocol == "http":
        return _UNKNOWN_MODEL in str(_open_http(endpoint, f"/v2/models/{model}", read_errors=True))
    with Connection(endpoint) as connection:
        try:
            connection.ask(service_pb2.ModelMetadataRequest(name=model), seconds=_TIMEOUT_SECONDS)
        except TritonctlError as error:
            return _UNKNOWN_MODEL in error.problem
    return False


def _index_grpc(connection: Connection) -> Any:
    try:
        request = service_pb2.RepositoryIndexRequest()
        answer = connection.ask(request, seconds=_TIMEOUT_SECONDS, admin=True)
    except TritonctlError:
        return None
    return MessageToDict(answer).get("models")


def _query_grpc(connection: Connection, model: str | None) -> dict[str, Any] | None:
    request: Any = service_pb2.ServerMetadataRequest()
    if model is not None:
        request = service_pb2.ModelConfigRequest(name=model)
    try:
        answer = connection.ask(request, seconds=_TIMEOUT_SECONDS)
    except TritonctlError:
        return None
    record: dict[str, Any] = MessageToDict(answer, preserving_proto_field_name=True)
    return record if model is None else record.get("config")


def _query_http(endpoint: Endpoint, model: str | None) -> dict[str, Any] | None:
    path = "/v2" if model is None else f"/v2/models/{model}/config"
    record: dict[str, Any] | None = _open_http(endpoint, path)
    return record


def _open_http(
    endpoint: Endpoint, path: str, body: bytes | None = None, *, read_errors: bool = False
) -> Any:
    """Return the JSON response; None without one, or for an HTTP error.

    read_errors: return the body of an HTTP error, too.
    """
    url = endpoint.url if "://" in endpoint.url else f"http://{endpoint.url}"
    request = urllib.request.Request(url.rstrip("/") + path, body)  # noqa: S310
    for name, value in endpoint.metadata:
        request.add_unredirected_header(name, value)  # do not send the key after redirects
    try:
        try:
            with open_url(request, _TIMEOUT_SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return json.loads(error.read()) if read_errors else None
    except (OSError, ValueError):
        return None


def _query_facts(query: _FactQuery, model: str) -> dict[str, Any]:
    metadata = query(None)
    configs: dict[str, Any] = {}
    _collect_configs(query, model, configs)
    return {
        "server": metadata
        and {name: metadata.get(name) for name in ("name", "version", "extensions")},
        "models": configs,
        "ensemble": steps_of(configs.get(model, {})),
    }


def _collect_configs(query: _FactQuery, model: str, configs: dict[str, Any]) -> None:
    """Collect the configurations of a model and its composing models."""
    config = query(model)
    if config is None or model in configs:
        return
    configs[model] = config
    for step in steps_of(config):
        _collect_configs(query, step, configs)


def collect_facts(
    project: Project,
    name: str,
    scenario: Scenario,
    protocol: str,
    endpoint: Endpoint,
    profile: str | None,
) -> dict[str, Any]:
    """Return all facts known before the run, including those of the load generator's machine."""
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
        "slo": effective_slo(project, scenario).model_dump(),
    }

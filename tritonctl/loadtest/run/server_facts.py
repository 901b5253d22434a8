# SPDX-License-Identifier: Apache-2.0
"""What `facts.json` of a run holds: server, model configurations, machine, versions.

What a server does not answer (another implementation, one behind a proxy) is left out; the load
generator finds out whether it can be tested at all.
"""

from __future__ import annotations

import json
import os
import platform
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

from tritonctl.errors import TritonctlError
from tritonctl.host.files import host_memory
from tritonctl.host.version import __version__
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import Connection

_TIMEOUT_SECONDS = 5.0


class _Server(Protocol):
    def metadata(self) -> dict[str, Any] | None: ...

    def config(self, model: str) -> dict[str, Any] | None: ...


class _GrpcServer:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def metadata(self) -> dict[str, Any] | None:
        return self._ask(service_pb2.ServerMetadataRequest())

    def config(self, model: str) -> dict[str, Any] | None:
        answer = self._ask(service_pb2.ModelConfigRequest(name=model))
        return None if answer is None else answer.get("config")

    def _ask(self, request: Any) -> dict[str, Any] | None:
        try:
            answer = self._connection.ask(request, seconds=_TIMEOUT_SECONDS)
        except TritonctlError:
            return None
        record: dict[str, Any] = MessageToDict(answer, preserving_proto_field_name=True)
        return record


class _HttpServer:
    def __init__(self, endpoint: Endpoint) -> None:
        url = endpoint.url
        self._url = url if "://" in url else f"http://{url}"
        self._metadata = endpoint.metadata

    def metadata(self) -> dict[str, Any] | None:
        return self._ask("/v2")

    def config(self, model: str) -> dict[str, Any] | None:
        return self._ask(f"/v2/models/{model}/config")

    def _ask(self, path: str) -> dict[str, Any] | None:
        request = urllib.request.Request(self._url.rstrip("/") + path)  # noqa: S310
        for name, value in self._metadata:
            request.add_unredirected_header(name, value)  # a key must not follow redirects
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
                record: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError):
            return None
        return record


def server_facts(protocol: str, endpoint: Endpoint, model: str) -> dict[str, Any]:
    """`server`, `models` and `ensemble` of facts.json."""
    if protocol == "http":
        return _answers(_HttpServer(endpoint), model)
    with Connection(endpoint) as connection:
        return _answers(_GrpcServer(connection), model)


def _answers(server: _Server, model: str) -> dict[str, Any]:
    metadata = server.metadata()
    configs: dict[str, Any] = {}
    _collect(server, model, configs)
    return {
        "server": metadata
        and {name: metadata.get(name) for name in ("name", "version", "extensions")},
        "models": configs,
        "ensemble": _steps(configs.get(model)),
    }


def _collect(server: _Server, model: str, configs: dict[str, Any]) -> None:
    """The configurations of a model and of the steps that it is composed of."""
    config = server.config(model)
    if config is None or model in configs:
        return
    configs[model] = config
    for step in _steps(config):
        _collect(server, step, configs)


def _steps(config: dict[str, Any] | None) -> list[str]:
    scheduling = (config or {}).get("ensemble_scheduling") or {}
    return [step["model_name"] for step in scheduling.get("step", ())]


def host_facts() -> dict[str, Any]:
    """The machine that sends the load."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": host_memory(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def facts(
    protocol: str,
    endpoint: Endpoint,
    model: str,
    *,
    project: Path,
    profile: str | None,
    scenario: str,
    slo: dict[str, float | None],
) -> dict[str, Any]:
    """All facts that are known before the run."""
    return {
        "tritonctl": __version__,
        "project": str(project),
        "profile": profile,
        "scenario": scenario,
        **server_facts(protocol, endpoint, model),
        "host": host_facts(),
        "slo": slo,
    }

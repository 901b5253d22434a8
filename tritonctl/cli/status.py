# SPDX-License-Identifier: Apache-2.0
"""`tritonctl status`: whether the server runs, and whether every model is ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tritonctl.cli import options
from tritonctl.errors import ServerError

if TYPE_CHECKING:
    from tritonctl.server.lifecycle import Status
    from tritonctl.server.state import Server


@options.expand_options
def command(
    *,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Show the server's health; exit code 7 unless every model of every server is ready."""
    from tritonctl.server.lifecycle import status

    console = voice.console()
    servers = status(project.load())
    ready = all(server.health.ready for server in servers)
    first = max(servers, key=lambda server: server.health.ready)
    record = {
        "ready": ready,
        "live": first.health.live,
        **_addresses(first),
        "models": first.health.models,
        "crashes": [asdict(crash) for crash in first.crashes],
        "servers": [
            {"ready": server.health.ready, "container": server.container, **_addresses(server)}
            for server in servers
        ],
    }
    failure = None if ready else _failure(servers, first)
    console.result(record, "\n".join(_lines(servers, first, ready=ready)), failure)
    if failure:
        raise failure


def _failure(servers: Sequence[Status], first: Status) -> ServerError:
    names = [name for name, state in first.health.models.items() if state != "READY"]
    if len(servers) > 1:
        behind = [str(server.container) for server in servers if not server.health.ready]
        problem = f"not ready: {', '.join(behind)}"
    elif not first.health.live:
        problem = f"Triton does not answer at {first.state.grpc_url}"
    else:
        problem = f"not ready: {', '.join(names) or 'Triton'}"
    return ServerError(problem, remedy="`tritonctl logs` shows why; `tritonctl up` starts it again")


def _addresses(server: Status) -> dict[str, Any]:
    state = server.state
    return {
        "pid": state.pid,
        "grpc": state.grpc_url,
        "http": state.http_url,
        "metrics": state.metrics_url,
        "readiness": _readiness(state),
    }


def _readiness(state: Server) -> str | None:
    """Where gateways ask an embedded server; containers publish no such port."""
    from tritonctl.server.state import EmbeddedServer

    return state.readiness_url if isinstance(state, EmbeddedServer) else None


def _lines(servers: Sequence[Status], first: Status, *, ready: bool) -> Iterator[str]:
    word = "ready" if ready else "NOT READY"
    if len(servers) == 1:
        yield f"Triton {word} (pid {first.state.pid})"
    else:
        count = sum(server.health.ready for server in servers)
        yield f"Triton {word}: {count} of {len(servers)} servers are ready"
    for server in servers:
        yield _where(server, alone=len(servers) == 1)
    if first.crashes:
        from tritonctl.server.restarts import described

        yield f"  {described(first.crashes)}"
    for name, model_state in first.health.models.items():
        yield f"  {model_state:<12} {name}"


def _where(server: Status, *, alone: bool) -> str:
    state = server.state
    urls = f"gRPC {state.grpc_url}  HTTP {state.http_url}  metrics {state.metrics_url}"
    if readiness := _readiness(state):
        urls += f"  readiness {readiness}"
    if alone:
        return f"  {urls}"
    if not state.grpc_port:
        return f"  {server.container}: no port"
    return f"  {server.container}, {server.health.summary()}: {urls}"

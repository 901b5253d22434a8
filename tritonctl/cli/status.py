# SPDX-License-Identifier: Apache-2.0
"""`tritonctl status`: whether the server runs, and whether every model is ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tritonctl.cli import options
from tritonctl.cli.cluster_options import ClusterOptions
from tritonctl.errors import ServerError

if TYPE_CHECKING:
    from tritonctl.project.schema import Project
    from tritonctl.protocol.model_config import Config
    from tritonctl.server.containers.api import Api
    from tritonctl.server.groups import Beside
    from tritonctl.server.lifecycle import Status
    from tritonctl.server.state import Server


@options.expand_options
def command(
    *,
    cluster: ClusterOptions,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Show the server's health; exit code 7 unless every model of every server is ready.

    Of a cluster: pods, scaling and what keeps them from serving; exit code 4 where it is the
    cluster that lacks something.
    """
    from tritonctl.server.groups import beside
    from tritonctl.server.lifecycle import status

    console = voice.console()
    if (installation := cluster.installation(project)) is not None:
        from tritonctl.cli import cluster_status

        cluster_status.show(console, installation)
        return
    loaded = project.load()
    servers, gateway, other = status(loaded), _gateway(loaded), beside(loaded)
    ready = (gateway is None or gateway["ready"]) and all(
        server.health.ready and (server.api is None or server.api.ready) for server in servers
    )
    first = max(servers, key=lambda server: server.health.ready)
    served = _served(loaded, first)
    record = {
        "ready": ready,
        "live": first.health.live,
        "release": first.state.release or None,
        **_addresses(first.state),
        "models": first.health.models,
        "served": served,
        "frontend": asdict(first.api) if first.api else None,
        "gateway": gateway,
        "beside": _beside(other) if other else None,
        "crashes": [asdict(crash) for crash in first.crashes],
        "servers": [
            {
                "ready": server.health.ready,
                "container": server.container,
                **_addresses(server.state),
            }
            for server in servers
        ],
    }
    failure = None if ready else _failure(servers, first)
    if not voice.as_json:
        lines = [*_lines(servers, first, ready=ready), *_around(gateway, other)]
        console.text("".join(f"{line}\n" for line in lines))
    rows = [
        [f"  {name}", state, served[name]["by"], served[name]["instances"]]
        for name, state in first.health.models.items()
    ]
    console.table(record, ("  model", "state", "served by", "instances"), rows, failure)
    if failure:
        raise failure


def _failure(servers: Sequence[Status], first: Status) -> ServerError:
    names = [name for name, state in first.health.models.items() if state != "READY"]
    if len(servers) > 1:
        behind = [str(server.container) for server in servers if not server.health.ready]
        problem = f"not ready: {', '.join(behind)}"
    elif not first.health.live:
        problem = f"Triton does not answer at {first.state.grpc_url}"
    elif not names and first.api is not None and not first.api.ready:
        problem = "the frontend is not ready"
        return ServerError(
            problem, remedy="`tritonctl logs frontend` shows why; `tritonctl up` starts it again"
        )
    elif first.health.ready:
        return ServerError(
            "the gateway is not ready",
            remedy="`tritonctl logs gateway` shows why; `tritonctl up` starts it again",
        )
    else:
        problem = f"not ready: {', '.join(names) or 'Triton'}"
    return ServerError(problem, remedy="`tritonctl logs` shows why; `tritonctl up` starts it again")


def _gateway(project: Project) -> dict[str, Any] | None:
    """The Envoy before embedded servers; None where the project has none there."""
    from tritonctl.server.embedded.gateway import is_ready, is_wanted, running

    if not is_wanted(project):
        return None
    process = running(project)
    if process is None:
        return {"url": None, "metrics": None, "pid": None, "ready": False}
    return {
        "url": process.url,
        "metrics": process.metrics_url,
        "pid": process.pid,
        "ready": is_ready(process),
    }


def _beside(other: Beside) -> dict[str, Any]:
    """A candidate, or what is kept warm."""
    return {
        "slot": other.slot.value,
        "release": other.server.release or None,
        "ready": other.ready,
        "share": other.share,
        **_addresses(other.server),
    }


def _around(gateway: dict[str, Any] | None, other: Beside | None) -> Iterator[str]:
    """What is before the servers, and beside them."""
    if gateway is not None:
        where = f"{gateway['url']} (pid {gateway['pid']})" if gateway["url"] else "it has ended"
        yield f"  {'gateway':<9}  {where}{'' if gateway['ready'] else '  NOT READY'}"
    if other is not None:
        users = f"{other.share:g} % of the users" if other.share else "no users"
        word = "" if other.ready else ", NOT READY"
        yield f"  {'beside':<9}  {other.server.release} in slot {other.slot}: {users}{word}"


def _addresses(state: Server) -> dict[str, Any]:
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
    if first.state.release:
        yield f"  release    {first.state.release}{_unfinished(first.state)}"
    for server in servers:
        yield from _where(server, alone=len(servers) == 1)
    if first.api and len(servers) > 1:
        yield f"  {'OpenAI':<9}  {_api(first.api)}"
    if first.crashes:
        from tritonctl.server.restarts import described

        yield f"  {described(first.crashes)}"


def _unfinished(state: Server) -> str:
    """What to do where a switch to another release was killed."""
    if not state.switching_to:
        return ""
    return (
        f" in parts, and {state.switching_to}: a switch runs, or was killed\n"
        f"  then       tritonctl rollback {state.release}\n"
        f"  or         tritonctl up --release {state.switching_to}"
    )


def _where(server: Status, *, alone: bool) -> Iterator[str]:
    state = server.state
    urls = {"gRPC": state.grpc_url, "HTTP": state.http_url, "metrics": state.metrics_url}
    if readiness := _readiness(state):
        urls["readiness"] = readiness
    if server.api and alone:
        urls["OpenAI"] = _api(server.api)
    if not alone and not state.grpc_port:
        yield f"  {server.container}: no port"
        return
    indent = "  " if alone else "    "
    if not alone:
        yield f"  {server.container}, {server.health.summary()}"
    yield from (f"{indent}{name:<9}  {url}" for name, url in urls.items())


def _api(api: Api) -> str:
    return api.url + ("" if api.ready else "  NOT READY")


def _served(project: Project, server: Status) -> dict[str, dict[str, str]]:
    """What serves each model: its backend, its engine, how often and on what."""
    from tritonctl.server.health import live_configs

    names = server.health.models
    configs = live_configs(server.state, names) if server.health.live else {}
    engines = _engines(project)
    return {
        name: {
            "by": _backend(configs.get(name), engines.get(name)),
            "instances": _instances(configs.get(name)),
        }
        for name in names
    }


def _engines(project: Project) -> dict[str, str]:
    """Builder and precision of each model in Triton that runs an engine of the project."""
    from tritonctl.repository.ensembles import ENGINE_STEP
    from tritonctl.repository.steps import step_models

    engines = {}
    for name, model in project.models.items():
        steps = step_models(project, name)
        step = steps.get(ENGINE_STEP) or (name if set(steps.values()) == {name} else None)
        if step is not None:
            engines[step] = f"{model.engine.builder} {model.engine.precision}"
    return engines


def _backend(config: Config | None, engine: str | None) -> str:
    from tritonctl.protocol.model_config import steps_of

    if config is None:
        return "-"
    if steps := steps_of(config):
        return f"ensemble of {len(steps)} steps"
    backend = str(config.get("backend") or config.get("platform") or "-")
    return f"{backend}: {engine}" if engine else backend


def _instances(config: Config | None) -> str:
    """Such as `2 CPU`; an ensemble has none."""
    groups = (config or {}).get("instance_group") or ()
    counts: dict[str, int] = {}
    for group in groups:
        kind = str(group.get("kind", "")).removeprefix("KIND_")
        each = int(group.get("count") or 1) * max(1, len(group.get("gpus") or ()))
        counts[kind] = counts.get(kind, 0) + each
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "-"

# SPDX-License-Identifier: Apache-2.0
"""`tritonctl status`: show whether the server runs and every model is ready."""

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
    from tritonctl.runtimes.docker.openai_url import OpenAiApi
    from tritonctl.runtimes.lifecycle import ServerStatus
    from tritonctl.runtimes.server_state import Server
    from tritonctl.runtimes.slot_servers import StandbySlot


@options.expand_options
def command(
    *,
    cluster: ClusterOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Show the server's health; exit code 7 unless every model of every server is ready.

    With --on kubernetes: show pods, scaling and problems; exit code 4 if the cluster lacks
    something.
    """
    from tritonctl.runtimes.lifecycle import server_statuses
    from tritonctl.runtimes.slot_servers import standby_slot

    console = output_options.console()
    if (installation := cluster.installation(project)) is not None:
        from tritonctl.cli import cluster_status

        cluster_status.show(console, installation)
        return
    loaded = project.load()
    servers, gateway, standby = server_statuses(loaded), _gateway(loaded), standby_slot(loaded)
    ready = (gateway is None or gateway["ready"]) and all(
        server.health.ready and (server.api is None or server.api.ready) for server in servers
    )
    first = max(servers, key=lambda server: server.health.ready)
    model_backends = _model_backends(loaded, first)
    record = {
        "ready": ready,
        "live": first.health.live,
        "release": first.state.release or None,
        **_addresses(first.state),
        "models": first.health.models,
        "model_backends": model_backends,
        "frontend": asdict(first.api) if first.api else None,
        "gateway": gateway,
        "standby": _standby_record(standby) if standby else None,
        "crashes": [asdict(crash) for crash in first.crashes],
        "servers": [_server_record(server) for server in servers],
    }
    failure = None if ready else _failure(servers, first)
    if not output_options.as_json:
        lines = [
            *_lines(servers, first, ready=ready),
            *_gateway_and_standby_lines(gateway, standby),
        ]
        console.text("".join(f"{line}\n" for line in lines))
    rows = [
        [f"  {name}", state, model_backends[name]["backend"], model_backends[name]["instances"]]
        for name, state in first.health.models.items()
    ]
    console.table(record, ("  model", "state", "served by", "instances"), rows, failure)
    if failure:
        raise failure


def _server_record(server: ServerStatus) -> dict[str, Any]:
    return {
        "ready": server.health.ready,
        "container": server.container,
        **_addresses(server.state),
    }


def _failure(servers: Sequence[ServerStatus], first: ServerStatus) -> ServerError:
    names = [name for name, state in first.health.models.items() if state != "READY"]
    if len(servers) > 1:
        behind = [str(server.container) for server in servers if not server.health.ready]
        problem = f"not ready: {', '.join(behind)}"
    elif not first.health.live:
        problem = f"Triton does not answer at {first.state.grpc_url}"
    elif not names and first.api is not None and not first.api.ready:
        problem = "the frontend is not ready"
        return ServerError(
            problem, remedy="`tritonctl logs frontend` shows why; `tritonctl up` restarts it"
        )
    elif first.health.ready:
        return ServerError(
            "the gateway is not ready",
            remedy="`tritonctl logs gateway` shows why; `tritonctl up` restarts it",
        )
    else:
        problem = f"not ready: {', '.join(names) or 'Triton'}"
    return ServerError(problem, remedy="`tritonctl logs` shows why; `tritonctl up` restarts it")


def _gateway(project: Project) -> dict[str, Any] | None:
    """Return the state of the Envoy in front of embedded servers; None without one."""
    from tritonctl.runtimes.embedded.gateway import has_gateway, running_gateway
    from tritonctl.runtimes.embedded.gateway_process import is_ready

    if not has_gateway(project):
        return None
    process = running_gateway(project)
    if process is None:
        return {"url": None, "metrics": None, "pid": None, "ready": False}
    return {
        "url": process.url,
        "metrics": process.metrics_url,
        "pid": process.pid,
        "ready": is_ready(process),
    }


def _standby_record(standby: StandbySlot) -> dict[str, Any]:
    """Return the record of the candidate, or of the warm previous version."""
    return {
        "slot": standby.slot.value,
        "release": standby.server.release or None,
        "ready": standby.ready,
        "share_percent": standby.share,
        **_addresses(standby.server),
    }


def _gateway_and_standby_lines(
    gateway: dict[str, Any] | None, standby: StandbySlot | None
) -> Iterator[str]:
    """Yield the lines of the gateway and of the standby slot."""
    if gateway is not None:
        location = f"{gateway['url']} (pid {gateway['pid']})" if gateway["url"] else "it has ended"
        yield f"  {'gateway':<9}  {location}{'' if gateway['ready'] else '  NOT READY'}"
    if standby is not None:
        users = f"{standby.share:g} % of the traffic" if standby.share else "no traffic"
        word = "" if standby.ready else ", NOT READY"
        yield f"  {'standby':<9}  {standby.server.release} in slot {standby.slot}: {users}{word}"


def _addresses(state: Server) -> dict[str, Any]:
    return {
        "pid": state.pid,
        "grpc": state.grpc_url,
        "http": state.http_url,
        "metrics": state.metrics_url,
        "readiness": _readiness(state),
    }


def _readiness(state: Server) -> str | None:
    """Return an embedded server's readiness URL; containers do not publish its port."""
    from tritonctl.runtimes.server_state import EmbeddedServer

    return state.readiness_url if isinstance(state, EmbeddedServer) else None


def _lines(servers: Sequence[ServerStatus], first: ServerStatus, *, ready: bool) -> Iterator[str]:
    word = "ready" if ready else "NOT READY"
    if len(servers) == 1:
        yield f"Triton {word} (pid {first.state.pid})"
    else:
        count = sum(server.health.ready for server in servers)
        yield f"Triton {word}: {count} of {len(servers)} servers are ready"
    if first.state.release:
        yield f"  release    {first.state.release}{_unfinished_switch_text(first.state)}"
    for server in servers:
        yield from _server_lines(server, is_only_server=len(servers) == 1)
    if first.api and len(servers) > 1:
        yield f"  {'OpenAI':<9}  {_api(first.api)}"
    if first.crashes:
        from tritonctl.supervision.restarts import describe_crashes

        yield f"  {describe_crashes(first.crashes)}"


def _unfinished_switch_text(state: Server) -> str:
    """Return the next commands if a switch to another release was killed."""
    if not state.switching_to:
        return ""
    return (
        f" and {state.switching_to}: a switch is running, or was killed\n"
        f"  if killed  tritonctl releases rollback {state.release}\n"
        f"  or         tritonctl up --release {state.switching_to}"
    )


def _server_lines(server: ServerStatus, *, is_only_server: bool) -> Iterator[str]:
    state = server.state
    urls = {"gRPC": state.grpc_url, "HTTP": state.http_url, "metrics": state.metrics_url}
    if readiness := _readiness(state):
        urls["readiness"] = readiness
    if server.api and is_only_server:
        urls["OpenAI"] = _api(server.api)
    if not is_only_server and not state.grpc_port:
        yield f"  {server.container}: no port"
        return
    indent = "  " if is_only_server else "    "
    if not is_only_server:
        yield f"  {server.container}, {server.health.summary()}"
    yield from (f"{indent}{name:<9}  {url}" for name, url in urls.items())


def _api(api: OpenAiApi) -> str:
    return api.url + ("" if api.ready else "  NOT READY")


def _model_backends(project: Project, server: ServerStatus) -> dict[str, dict[str, str]]:
    """Return backend, engine and instances of each model."""
    from tritonctl.runtimes.health import live_configs

    names = server.health.models
    configs = live_configs(server.state, names) if server.health.live else {}
    engines = _engines(project)
    return {
        name: {
            "backend": _backend(configs.get(name), engines.get(name)),
            "instances": _instances(configs.get(name)),
        }
        for name in names
    }


def _engines(project: Project) -> dict[str, str]:
    """Return builder and precision of each model in Triton that runs one of the engines."""
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
    """Return the instances, such as `2 CPU`; `-` for an ensemble."""
    groups = (config or {}).get("instance_group") or ()
    counts: dict[str, int] = {}
    for group in groups:
        kind = str(group.get("kind", "")).removeprefix("KIND_")
        each = int(group.get("count") or 1) * max(1, len(group.get("gpus") or ()))
        counts[kind] = counts.get(kind, 0) + each
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "-"

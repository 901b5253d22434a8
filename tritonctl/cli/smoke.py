# SPDX-License-Identifier: Apache-2.0
"""`tritonctl smoke`: a few valid requests to every model of a running Triton, and their answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.cluster_options import project_here
from tritonctl.cli.server_options import ServerOptions
from tritonctl.errors import ConfigurationError, ServerError

if TYPE_CHECKING:
    from tritonctl.cli.server_options import Named
    from tritonctl.project.schema import Project
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.server.kubernetes.installation import Installation
    from tritonctl.server.smoke.outcomes import Outcome, SmokeReport
    from tritonctl.server.smoke.run import Plan

_MARKS = {"pass": "pass", "fail": "FAIL", "skipped": "skipped"}


@options.expand_options
def command(
    *,
    server: ServerOptions,
    metrics_url: options.MetricsUrlOption = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--models", help="these models alone: a,b", show_default="all"),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for each request")] = 30.0,
    cancellation: Annotated[
        bool, typer.Option("--cancellation/--no-cancellation", help="cancel one stream")
    ] = True,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Send every ready model valid requests and judge the answers; exit code 7 when one fails."""
    from dataclasses import replace

    from tritonctl.server.smoke.run import smoke_server

    console = voice.console()
    with (
        server.named(project, past_gateway=True) as named,
        named.metrics(metrics_url) as metrics,
    ):
        plan = _plan(named, project)
        plan = replace(
            plan,
            models=tuple(options.listed(models)) or plan.models,
            metrics=metrics or plan.metrics,
            seconds=timeout,
            cancellation=cancellation,
        )
        report = smoke_server(plan, console)
    rows = [(o.model, o.check, _MARKS[o.status], o.detail) for o in report.outcomes]
    failure = _failure(report)
    console.table(report.as_record(), ("model", "check", "", "what was seen"), rows, failure)
    console.note(report.summary())
    if failure:
        raise failure


def _plan(named: Named, project: options.ProjectOptions) -> Plan:
    """The project's own server with what its state says, or the address alone."""
    from tritonctl.protocol.metrics import scrape
    from tritonctl.server.lifecycle import running_server
    from tritonctl.server.smoke.run import Plan

    at = named.endpoint()
    if at is not None and named.installation is not None:
        return _plan_of_cluster(at, named.installation, project_here(project))
    try:
        opened = project.load()
        state = running_server(opened)
    except (ConfigurationError, ServerError):
        if at is None:
            raise
        return Plan(at)
    if at is None or at.url == state.grpc_url:
        return Plan(state.endpoint, metrics=partial(scrape, state.metrics_url), project=opened)
    return Plan(at)


def _plan_of_cluster(at: Endpoint, installation: Installation, project: Project | None) -> Plan:
    """The project's public models: a server of tritonctl's keeps the list of all to itself."""
    from tritonctl.server.smoke.run import Plan

    server = f"--on kubernetes{installation.kubectl.flags} --release-name {installation.name}"
    models = tuple(project.public) if project else ()
    return Plan(at, models, project=project, named=server)


def _failure(report: SmokeReport) -> ServerError | None:
    if not report.failures:
        return None
    models = sorted({failure.model for failure in report.failures})
    return ServerError(
        f"{len(report.failures)} of {len(report.outcomes)} checks failed: {', '.join(models)}",
        remedy="repeat one of them as shown, and read `tritonctl logs`",
        details="\n".join(map(_explained, report.failures)),
    )


def _explained(failure: Outcome) -> str:
    import json

    lines = [f"{failure.model}: {failure.check}: {failure.detail}"]
    if failure.request is not None:
        lines += [f"  the request: {json.dumps(failure.request, ensure_ascii=False)}"]
    if failure.repeat:
        lines += [f"  again: {failure.repeat}"]
    return "\n".join(lines)

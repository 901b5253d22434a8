# SPDX-License-Identifier: Apache-2.0
"""`tritonctl smoke`: send valid requests to every model of a running Triton and check answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.cluster_options import find_project
from tritonctl.cli.server_options import ServerOptions
from tritonctl.errors import ConfigurationError, ServerError

if TYPE_CHECKING:
    from tritonctl.cli.server_options import NamedServer
    from tritonctl.project.schema import Project
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.runtimes.kubernetes.installation import ChartInstallation
    from tritonctl.smoke.outcomes import SmokeOutcome, SmokeReport
    from tritonctl.smoke.run import SmokePlan

_MARKS = {"pass": "pass", "fail": "FAIL", "skipped": "skipped"}


@options.expand_options
def command(
    *,
    server: ServerOptions,
    metrics_url: options.MetricsUrlOption = None,
    models: options.ModelsOption = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="seconds for a whole request")
    ] = 30.0,
    cancellation: Annotated[
        bool, typer.Option("--cancellation/--no-cancellation", help="cancel one stream")
    ] = True,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Send valid requests to every ready model and check the answers; exit code 7 on failure."""
    from dataclasses import replace

    from tritonctl.smoke.run import smoke_server

    console = output_options.console()
    with (
        server.open_server(project, past_gateway=True) as named_server,
        named_server.metrics(metrics_url) as metrics,
    ):
        plan = _plan(named_server, project)
        plan = replace(
            plan,
            models=tuple(options.split_names([models or ""])) or plan.models,
            metrics=metrics or plan.metrics,
            seconds=timeout,
            cancellation=cancellation,
        )
        report = smoke_server(plan, console)
    rows = [(o.model, o.check, _MARKS[o.status], o.detail) for o in report.outcomes]
    failure = _failure(report)
    console.table(report.as_record(), ("model", "check", "", "result"), rows, failure)
    console.note(report.summary())
    if failure:
        raise failure


def _plan(named_server: NamedServer, project: options.ProjectOptions) -> SmokePlan:
    """Return the plan for the project's server with its state, or for an address."""
    from tritonctl.protocol.metrics import scrape
    from tritonctl.runtimes.lifecycle import running_server
    from tritonctl.smoke.run import SmokePlan

    endpoint = named_server.endpoint()
    if endpoint is not None and named_server.installation is not None:
        return _cluster_plan(endpoint, named_server.installation, find_project(project))
    try:
        opened = project.load()
        state = running_server(opened)
    except (ConfigurationError, ServerError):
        if endpoint is None:
            raise
        return SmokePlan(endpoint)
    if endpoint is None or endpoint.url == state.grpc_url:
        return SmokePlan(state.endpoint, metrics=partial(scrape, state.metrics_url), project=opened)
    return SmokePlan(endpoint)


def _cluster_plan(
    endpoint: Endpoint, installation: ChartInstallation, project: Project | None
) -> SmokePlan:
    """Return the plan for a cluster: the project's public models, as the server lists none."""
    from tritonctl.smoke.run import SmokePlan

    server = f"--on kubernetes{installation.kubectl.flags} --release-name {installation.name}"
    models = tuple(project.public) if project else ()
    return SmokePlan(endpoint, models, project=project, server_option=server)


def _failure(report: SmokeReport) -> ServerError | None:
    if not report.failures:
        return None
    models = sorted({failure.model for failure in report.failures})
    return ServerError(
        f"{len(report.failures)} of {len(report.outcomes)} checks failed: {', '.join(models)}",
        remedy="repeat a request as shown, and read `tritonctl logs`",
        details="\n".join(map(_failure_details, report.failures)),
    )


def _failure_details(failure: SmokeOutcome) -> str:
    import json

    lines = [f"{failure.model}: {failure.check}: {failure.detail}"]
    if failure.request is not None:
        lines += [f"  request: {json.dumps(failure.request, ensure_ascii=False)}"]
    if failure.repeat:
        lines += [f"  repeat: {failure.repeat}"]
    return "\n".join(lines)

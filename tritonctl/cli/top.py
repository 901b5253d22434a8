# SPDX-License-Identifier: Apache-2.0
"""`tritonctl top`: live figures of a running Triton."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritonctl.cli import options
from tritonctl.cli.cluster_options import ClusterOptions
from tritonctl.cli.vocabulary import CONNECTION
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.project.schema import Project
    from tritonctl.protocol.metrics import Metrics
    from tritonctl.top.figures import ModelLayout
    from tritonctl.top.watching import MetricsEndpoint

_LIVE_WINDOW_SECONDS = 10.0


@options.expand_options
def command(
    *,
    metrics_url: Annotated[
        str | None,
        typer.Option(
            "--metrics-url",
            metavar="URL",
            help="metrics of the server",
            show_default="the project's",
            rich_help_panel=CONNECTION,
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.2, max=3600, help="time between updates"
        ),
    ] = 2.0,
    window: Annotated[
        float | None,
        typer.Option(
            "--window",
            metavar="SECONDS",
            min=0.2,
            max=3600,
            help="time that rates are computed over",
            show_default="10, with --json the interval",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="show one interval, then exit")] = False,
    sort: Annotated[
        Literal["requests", "failed", "ttft", "waiting", "name"],
        typer.Option("--sort", help="order of the models"),
    ] = "requests",
    cluster: ClusterOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Show rates, queues, times to first token and between tokens, KV cache; Ctrl-C ends it.

    A server that stops answering is marked until it is back. With --on kubernetes the figures are
    sums over all ready Triton pods.
    """
    from tritonctl.top.watching import MetricsWatcher, watch

    seconds = window or (None if output_options.as_json else _LIVE_WINDOW_SECONDS)
    try:
        with ExitStack() as stack:
            find, read = _source(stack, metrics_url, cluster, project)
            watcher = MetricsWatcher(find, interval=interval, window=seconds, read=read)
            with output_options.console().watch_server(sort, live=not once) as show:
                watch(watcher, interval, show, once=once)
    except KeyboardInterrupt:
        raise typer.Exit from None  # Ctrl-C is the normal end


def _source(
    stack: ExitStack,
    url: str | None,
    cluster: ClusterOptions,
    project: options.ProjectOptions,
) -> tuple[Callable[[], MetricsEndpoint], Callable[[str], Metrics]]:
    """Return functions that find the server and read its metrics; `stack` closes them."""
    from tritonctl.protocol.metrics import scrape
    from tritonctl.top.watching import MetricsEndpoint

    installation = cluster.installation(project)
    if installation is None:
        return partial(_endpoint, url, project), scrape
    if url is not None:
        raise UsageError(
            "--on kubernetes and --metrics-url name two servers",
            remedy="drop one of the two options",
        )
    from tritonctl.runtimes.kubernetes.metrics import InstallationMetrics

    pods, layout = stack.enter_context(InstallationMetrics(installation)), _layout(project)
    return lambda: MetricsEndpoint(pods.open(), layout, release=lambda: pods.releases), pods.read


def _layout(project: options.ProjectOptions) -> ModelLayout:
    """Return the layout of the project's repository; an empty one without a project."""
    from tritonctl.errors import ConfigurationError
    from tritonctl.top.figures import ModelLayout
    from tritonctl.top.layout import layout_of

    try:
        return layout_of(project.load().repository)
    except ConfigurationError:
        if project.path is not None:
            raise
        return ModelLayout()


def _endpoint(url: str | None, project: options.ProjectOptions) -> MetricsEndpoint:
    """Return the endpoint at `url`, or of the project's running server."""
    from tritonctl.runtimes.lifecycle import running_server
    from tritonctl.runtimes.server_state import EmbeddedServer
    from tritonctl.supervision.process_usage import ServerUsage
    from tritonctl.top.layout import layout_of
    from tritonctl.top.watching import MetricsEndpoint, metrics_address

    if url is None:
        opened = project.load()
        state = running_server(opened)
        usage = ServerUsage(state.shm_prefix) if isinstance(state, EmbeddedServer) else None
        layout = layout_of(Path(state.repository))  # a release's repository is a link
        return MetricsEndpoint(state.metrics_url, layout, usage, partial(_release, opened))
    return MetricsEndpoint(metrics_address(url), _layout(project))


def _release(project: Project) -> str:
    """Return the live release, which may change while the server runs."""
    from tritonctl.runtimes.server_state import ServerFiles, read_state

    state = read_state(ServerFiles.of(project))
    return state.release if state else ""

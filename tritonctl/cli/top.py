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
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.project.schema import Project
    from tritonctl.protocol.metrics import Metrics
    from tritonctl.server.top.figures import Layout
    from tritonctl.server.top.watching import Endpoint

_LIVE_WINDOW_SECONDS = 10.0


@options.expand_options
def command(
    *,
    metrics_url: Annotated[
        str | None,
        typer.Option(
            "--metrics-url",
            help="metrics of any Triton, e.g. 127.0.0.1:8002",
            show_default="the project's server",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=3600, help="seconds between updates")
    ] = 2.0,
    window: Annotated[
        float | None,
        typer.Option(
            "--window",
            min=0.2,
            max=3600,
            help="compute rates and times over this many seconds",
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
    voice: options.OutputOptions,
) -> None:
    """Show rates, queues, times to first token and between tokens, KV cache; Ctrl-C ends it.

    A server that goes away is shown as gone until it is back. Of a cluster, the sums of all ready
    Triton pods are shown.
    """
    from tritonctl.server.top.watching import Watcher, watch

    seconds = window or (None if voice.as_json else _LIVE_WINDOW_SECONDS)
    try:
        with ExitStack() as stack:
            find, read = _source(stack, metrics_url, cluster, project)
            watcher = Watcher(find, interval=interval, window=seconds, read=read)
            with voice.console().watch_server(sort, live=not once) as show:
                watch(watcher, interval, show, once=once)
    except KeyboardInterrupt:
        raise typer.Exit from None  # the way to end it


def _source(
    stack: ExitStack,
    url: str | None,
    cluster: ClusterOptions,
    project: options.ProjectOptions,
) -> tuple[Callable[[], Endpoint], Callable[[str], Metrics]]:
    """What finds the server, and what reads its metrics; `stack` ends what they open."""
    from tritonctl.protocol.metrics import scrape
    from tritonctl.server.top.watching import Endpoint

    installation = cluster.installation(project)
    if installation is None:
        return partial(_endpoint, url, project), scrape
    if url is not None:
        raise UsageError(
            "--on kubernetes and --metrics-url name two servers", remedy="leave one of them out"
        )
    from tritonctl.server.kubernetes.metrics import PodMetrics

    pods, layout = stack.enter_context(PodMetrics(installation)), _layout(project)
    return lambda: Endpoint(pods.open(), layout, release=lambda: pods.releases), pods.read


def _layout(project: options.ProjectOptions) -> Layout:
    """Of the repository here, which names the steps of a model; an empty one without a project."""
    from tritonctl.errors import ConfigurationError
    from tritonctl.server.top.figures import Layout
    from tritonctl.server.top.layout import layout_of

    try:
        return layout_of(project.load().repository)
    except ConfigurationError:
        if project.path is not None:
            raise
        return Layout()


def _endpoint(url: str | None, project: options.ProjectOptions) -> Endpoint:
    """The address that was given, or the running server of the project."""
    from tritonctl.server.lifecycle import running_server
    from tritonctl.server.state import EmbeddedServer
    from tritonctl.server.top.layout import layout_of
    from tritonctl.server.top.watching import Endpoint, metrics_address
    from tritonctl.server.usage import ServerUsage

    if url is None:
        opened = project.load()
        state = running_server(opened)
        usage = ServerUsage(state.shm_prefix) if isinstance(state, EmbeddedServer) else None
        layout = layout_of(Path(state.repository))  # of a release, by the link to it
        return Endpoint(state.metrics_url, layout, usage, partial(_release, opened))
    return Endpoint(metrics_address(url), _layout(project))


def _release(project: Project) -> str:
    """The one that is served now; it may change while the server runs."""
    from tritonctl.server.state import ServerFiles, read_state

    state = read_state(ServerFiles.of(project))
    return state.release if state else ""

# SPDX-License-Identifier: Apache-2.0
"""Options that say which server a verb asks: the project's, one by its address, a cluster's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tritonctl.cli.cluster_options import ClusterOptions
from tritonctl.cli.options import AccessOptions, ProjectOptions, UrlOption
from tritonctl.errors import ServerError, TritonctlError, UsageError, choices

if TYPE_CHECKING:
    from tritonctl.project.schema import Project
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.protocol.metrics import Metrics
    from tritonctl.server.kubernetes.installation import Installation, Way

TEXT = ("text_generation",)


@dataclass(frozen=True)
class Named:
    """The server that the options name. installation, and the way into it: of a cluster."""

    url: str | None
    access: AccessOptions
    installation: Installation | None = None
    way: Way | None = None

    def endpoint(self) -> Endpoint | None:
        """Where it is now; None: no server is named. Raises ClusterError, UsageError."""
        if self.way is None:
            return self.access.endpoint(self.url)
        return self.access.endpoint(self.way.address(), name=self.way.name)

    def of_model(
        self, project: ProjectOptions, model: str, tasks: Collection[str] = TEXT
    ) -> Endpoint:
        """The same, or the project's running server, which has such a model.

        Raises ServerError when none runs, UsageError where the project's has no model of that name,
        or one of another task.
        """
        from tritonctl.protocol.asking import refuse_other_task
        from tritonctl.server.lifecycle import running_server

        if (named := self.endpoint()) is not None:
            return named
        loaded = project.load()
        server = running_server(loaded)
        if model not in server.models:
            raise UsageError(
                f"the server has no model {model}", remedy=choices(model, server.models, "it has")
            )
        if model in loaded.models:
            refuse_other_task(model, loaded.models[model].task, tasks)
        return server.endpoint

    @contextmanager
    def described(self, project: Project) -> Iterator[Endpoint | None]:
        """Who says what is served, where a cluster's gateway does not; None: who is asked.

        The options say how the gateway is reached, `server.tls` of the project how Triton is.
        """
        if self.installation is None:
            yield None
            return
        from tritonctl.protocol.channel import Endpoint
        from tritonctl.server.security.certificate_checks import client_tls

        with self.installation.triton() as way:
            yield Endpoint(way.address(), client_tls(project, way.name))

    @contextmanager
    def metrics(self, url: str | None) -> Iterator[Callable[[], Metrics] | None]:
        """What reads the engines' metrics: at `url`, of a cluster's pods; None: nobody knows."""
        if url is not None:
            from tritonctl.protocol.metrics import scrape
            from tritonctl.server.top.watching import metrics_address

            yield partial(scrape, metrics_address(url))
        elif self.installation is None:
            yield None
        else:
            from tritonctl.server.kubernetes.metrics import PodMetrics

            with PodMetrics(self.installation) as pods:
                with suppress(TritonctlError):  # what is not there yet, is looked for again
                    pods.open()
                yield pods.lasting


@dataclass(frozen=True)
class ServerOptions:
    """Which server a verb asks, and how it is reached."""

    url: UrlOption = None
    access: AccessOptions = field(default_factory=AccessOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    @contextmanager
    def named(
        self, project: ProjectOptions | Project, *, past_gateway: bool = False
    ) -> Iterator[Named]:
        """The server that is named, as long as the context lasts: a cluster's port is forwarded.

        past_gateway: of a Triton pod there, for what a gateway refuses.

        Raises ClusterError, HostError, UsageError; ClusterError also in place of a ServerError of
        the body, where it was kubectl that ended.
        """
        installation = self.cluster.installation(project)
        if installation is None:
            yield Named(self.url, self.access)
            return
        if self.url is not None:
            raise UsageError(
                "--on kubernetes and --url name two servers", remedy="leave one of them out"
            )
        with installation.triton() if past_gateway else installation.gateway() as way:
            try:
                yield Named(None, self.access, installation, way)
            except ServerError:
                way.require_alive()
                raise

    @contextmanager
    def of_model(
        self, project: ProjectOptions, model: str, tasks: Collection[str] = TEXT
    ) -> Iterator[Endpoint]:
        """The server that is asked about a model. Raises as `named` and `Named.of_model`."""
        with self.named(project) as named:
            yield named.of_model(project, model, tasks)

# SPDX-License-Identifier: Apache-2.0
"""Options that select a server: the project's, one by its address, or a cluster's."""

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
    from tritonctl.runtimes.kubernetes.installation import ChartInstallation, ForwardedPort

TEXT = ("text_generation",)


@dataclass(frozen=True)
class NamedServer:
    """The server that the options name; a cluster's has an installation and a connection."""

    url: str | None
    access: AccessOptions
    installation: ChartInstallation | None = None
    connection: ForwardedPort | None = None

    def endpoint(self) -> Endpoint | None:
        """Return the current endpoint; None if no server is named.

        Raises ClusterError, UsageError.
        """
        if self.connection is None:
            return self.access.endpoint(self.url)
        return self.access.endpoint(self.connection.address(), name=self.connection.name)

    def model_endpoint(
        self, project: ProjectOptions, model: str, tasks: Collection[str] = TEXT
    ) -> Endpoint:
        """Return the named endpoint, or the project's server after checking the model.

        Raises ServerError if none runs, UsageError if the project's server has no such model or the
        model has another task.
        """
        from tritonctl.protocol.task_usage import refuse_other_task
        from tritonctl.runtimes.lifecycle import running_server

        if (named_endpoint := self.endpoint()) is not None:
            return named_endpoint
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
    def description_endpoint(self, project: Project) -> Iterator[Endpoint | None]:
        """Yield the endpoint that describes the models, if a cluster's gateway does not; or None.

        The options configure access to the gateway, the project's `server.tls` access to Triton.
        """
        if self.installation is None:
            yield None
            return
        from tritonctl.protocol.channel import Endpoint
        from tritonctl.security.certificate_checks import client_tls

        with self.installation.triton() as connection:
            yield Endpoint(connection.address(), client_tls(project, connection.name))

    @contextmanager
    def metrics(self, url: str | None) -> Iterator[Callable[[], Metrics] | None]:
        """Yield a reader of the engines' metrics, at `url` or of a cluster's pods; or None."""
        if url is not None:
            from tritonctl.protocol.metrics import scrape
            from tritonctl.top.watching import metrics_address

            yield partial(scrape, metrics_address(url))
        elif self.installation is None:
            yield None
        else:
            from tritonctl.runtimes.kubernetes.metrics import InstallationMetrics

            with InstallationMetrics(self.installation) as pods:
                with suppress(TritonctlError):  # missing pods are looked up again later
                    pods.open()
                yield pods.read_monotonic


@dataclass(frozen=True)
class ServerOptions:
    """The server of a verb and how to reach it."""

    url: UrlOption = None
    access: AccessOptions = field(default_factory=AccessOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    @contextmanager
    def open_server(
        self, project: ProjectOptions | Project, *, past_gateway: bool = False
    ) -> Iterator[NamedServer]:
        """Yield the named server; forwards a port of a cluster during the context.

        past_gateway: connect to a Triton pod, for requests that a gateway rejects.

        Raises ClusterError, HostError, UsageError; replaces a ServerError of the body by
        ClusterError if kubectl has ended.
        """
        installation = self.cluster.installation(project)
        if installation is None:
            yield NamedServer(self.url, self.access)
            return
        if self.url is not None:
            raise UsageError(
                "--on kubernetes and --url name two servers", remedy="drop one of the two options"
            )
        with installation.triton() if past_gateway else installation.gateway() as connection:
            try:
                yield NamedServer(None, self.access, installation, connection)
            except ServerError:
                connection.require_alive()
                raise

    @contextmanager
    def open_model_endpoint(
        self, project: ProjectOptions, model: str, tasks: Collection[str] = TEXT
    ) -> Iterator[Endpoint]:
        """Yield the endpoint for a model. Raises as open_server and NamedServer.model_endpoint."""
        with self.open_server(project) as named_server:
            yield named_server.model_endpoint(project, model, tasks)

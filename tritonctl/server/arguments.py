# SPDX-License-Identifier: Apache-2.0
"""The command line of tritonserver: the same for the embedded server and for a container."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Project
from tritonctl.project.server import Tls
from tritonctl.protocol.restrictions import restriction_arguments

_CACHE = "--cache-config="
# An answer that takes longer to look up is computed.
_REDIS_MS = 500


def server_arguments(
    project: Project,
    *,
    repository: str,
    address: str,
    ports: tuple[int, int, int],
    token: str,
    models: Sequence[str] = ("*",),
    plain_address: str | None = None,
    file: Callable[[Path], str] = str,
    with_cache: bool = False,
    has_redis_cache: bool = False,
) -> list[str]:
    """What a project asks of its server, wherever it runs.

    repository, address and ports (gRPC, HTTP, metrics) are as the server itself sees them; backend
    folders, which differ from place to place, are the caller's. models: what it loads at its start.
    token: of the restricted protocols,
    new with every start, or a placeholder that becomes one. plain_address: of HTTP and metrics,
    where it is not `address`. file: where the server finds a certificate of this machine.
    with_cache: whether a model has a response cache. has_redis_cache: whether the server's image
    brings that in Redis; ConfigurationError where it is wanted and missing.
    """
    grpc, http, metrics = ports
    plain_address = plain_address or address
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        "--disable-auto-complete-config",  # what was rendered is what runs
        "--exit-on-error=true",
        f"--exit-timeout-secs={project.server.exit_timeout_seconds}",
        f"--grpc-address={address}",
        f"--grpc-port={grpc}",
        f"--http-address={plain_address}",
        f"--http-port={http}",
        f"--metrics-address={plain_address}",
        f"--metrics-port={metrics}",
        "--allow-gpu-metrics=false",
        *restriction_arguments(token),
        *_tls_arguments(project.server.tls, lambda path: file(project.path(path))),
        # A gateway pings to notice a frozen server; by default Triton cuts a connection that is
        # pinged more than every five minutes, with all its streams.
        "--grpc-http2-min-recv-ping-interval-without-data=1000",
        "--grpc-keepalive-permit-without-calls=1",
        *_tracing(project),
        *(_caching(project, has_redis=has_redis_cache) if with_cache else ()),
    ]


def caches(command: Sequence[str]) -> bool:
    """Whether the server of this command line has a response cache."""
    return any(argument.startswith(_CACHE) for argument in command)


def _caching(project: Project, *, has_redis: bool) -> list[str]:
    address = project.server.cache_redis
    if address is None:
        return [f"{_CACHE}local,size={project.server.cache_bytes}"]
    if not has_redis:
        raise ConfigurationError(
            f"server.cache_redis is {address}, and this server has no cache in Redis: only "
            "NVIDIA's images of Triton bring it",
            remedy="remove `cache_redis` for a cache in the server's memory; or serve in a "
            "container of such an image, which models on a GPU get or `docker.image` names",
        )
    host, _, port = address.rpartition(":")
    # By default Triton would wait for a Redis that does not answer without an end.
    settings = (
        f"host={host}",
        f"port={port}",
        f"connect_timeout={_REDIS_MS}",
        f"socket_timeout={_REDIS_MS}",
    )
    return [f"{_CACHE}redis,{setting}" for setting in settings]


def _tls_arguments(tls: Tls | None, place: Callable[[Path], str]) -> list[str]:
    if tls is None:
        return []
    arguments = [
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={place(tls.certificate)}",
        f"--grpc-server-key={place(tls.key)}",
    ]
    if tls.client_ca is not None:
        arguments += ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={place(tls.client_ca)}"]
    return arguments


def _tracing(project: Project) -> list[str]:
    """OpenTelemetry instead of Triton's own format; spans leave in batches, once a second."""
    tracing = project.server.tracing
    if tracing is None:
        return []
    settings = (
        "mode=opentelemetry",
        f"opentelemetry,url={tracing.endpoint}",
        f"opentelemetry,resource=service.name={tracing.service_name}",
        "opentelemetry,bsp_schedule_delay=1000",
        f"rate={tracing.rate}",
        "level=TIMESTAMPS",
    )
    return [f"--trace-config={setting}" for setting in settings]

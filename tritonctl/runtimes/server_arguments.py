# SPDX-License-Identifier: Apache-2.0
"""The command line of tritonserver, shared by the embedded server and containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Project
from tritonctl.project.server import Tls
from tritonctl.protocol.restrictions import restriction_arguments

_CACHE_OPTION = "--cache-config="
# After this time Triton computes the response instead of reading it from the cache.
_REDIS_TIMEOUT_MS = 500


def server_arguments(
    project: Project,
    *,
    repository: str,
    address: str,
    ports: tuple[int, int, int],
    token: str,
    models: Sequence[str] = ("*",),
    plain_address: str | None = None,
    path_on_server: Callable[[Path], str] = str,
    with_cache: bool = False,
    has_redis_cache: bool = False,
) -> list[str]:
    """Return tritonserver's arguments for a project, without its backend folders.

    repository, address and ports (gRPC, HTTP, metrics): as the server itself sees them.
    token: of the restricted protocols, new at every start, or a placeholder for one.
    models: loaded at startup. plain_address: of HTTP and metrics; None: `address`.
    path_on_server: maps a certificate of this machine to the server's path.
    with_cache: whether a model has a response cache. has_redis_cache: whether the server's image
    includes the Redis cache. Raises ConfigurationError if a required Redis cache is missing.
    """
    grpc, http, metrics = ports
    plain_address = plain_address or address
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        "--disable-auto-complete-config",  # run exactly the rendered configuration
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
        *_tls_arguments(project.server.tls, lambda path: path_on_server(project.path(path))),
        # A gateway pings to detect a frozen server. By default Triton closes a connection that
        # pings more often than every five minutes, with all its streams.
        "--grpc-http2-min-recv-ping-interval-without-data=1000",
        "--grpc-keepalive-permit-without-calls=1",
        *_tracing_arguments(project),
        *(_cache_arguments(project, has_redis=has_redis_cache) if with_cache else ()),
    ]


def has_response_cache(command: Sequence[str]) -> bool:
    """Whether this command line enables a response cache."""
    return any(argument.startswith(_CACHE_OPTION) for argument in command)


def _cache_arguments(project: Project, *, has_redis: bool) -> list[str]:
    address = project.server.cache_redis
    if address is None:
        return [f"{_CACHE_OPTION}local,size={project.server.cache_bytes}"]
    if not has_redis:
        raise ConfigurationError(
            f"server.cache_redis is {address}, but this server has no Redis cache: only "
            "NVIDIA's images of Triton include it",
            remedy="remove `cache_redis` to cache in the server's memory; or serve in a container "
            "of such an image: GPU models use it, or set `docker.image`",
        )
    host, _, port = address.rpartition(":")
    # By default Triton waits forever for a Redis that does not answer.
    settings = (
        f"host={host}",
        f"port={port}",
        f"connect_timeout={_REDIS_TIMEOUT_MS}",
        f"socket_timeout={_REDIS_TIMEOUT_MS}",
    )
    return [f"{_CACHE_OPTION}redis,{setting}" for setting in settings]


def _tls_arguments(tls: Tls | None, path_on_server: Callable[[Path], str]) -> list[str]:
    if tls is None:
        return []
    arguments = [
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={path_on_server(tls.certificate)}",
        f"--grpc-server-key={path_on_server(tls.key)}",
    ]
    if tls.client_ca is not None:
        arguments += [
            "--grpc-use-ssl-mutual=true",
            f"--grpc-root-cert={path_on_server(tls.client_ca)}",
        ]
    return arguments


def _tracing_arguments(project: Project) -> list[str]:
    """Trace with OpenTelemetry, not in Triton's format; export spans in batches every second."""
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

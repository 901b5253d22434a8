# SPDX-License-Identifier: Apache-2.0
"""The parts of the project file that say how Triton runs: its ports, who may use them, containers.

Paths of keys and certificates are the only thing here about secrets: their content never is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tritonctl.errors import UsageError
from tritonctl.host.units import human_bytes, parse_bytes
from tritonctl.project.base import Positive, Strict

Port = Annotated[int, Field(ge=0, le=65535)]
# Part of a file's name in the gateway's container.
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


# Triton's local cache does not start with less: it has records of its own to keep.
_LEAST_CACHE_BYTES = 1 << 20


def _cache_size(text: str) -> str:
    try:
        size = parse_bytes(text)
    except UsageError as error:
        raise ValueError(f"{error.problem}: {error.remedy}") from error
    if size < _LEAST_CACHE_BYTES:
        raise ValueError(f"{human_bytes(size)} is too little for a cache: write 1MiB or more")
    return text


CacheSize = Annotated[str, AfterValidator(_cache_size)]
# Of a Redis, as tritonserver takes it.
_MOST_PORT = 65535


def _redis_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host) or not port.isdecimal():
        raise ValueError("write it as HOST:PORT, e.g. redis:6379; no password belongs there")
    if not 0 < int(port) <= _MOST_PORT:
        raise ValueError(f"{port} is no port: 1 to {_MOST_PORT}")
    return text


RedisAddress = Annotated[str, AfterValidator(_redis_address)]


class Tls(Strict):
    """TLS on the gRPC port; mutual with `client_ca`. `tritonctl certs` makes a set to develop with.

    Triton's HTTP and metrics ports have no TLS: they stay on loopback.
    """

    certificate: Path = Field(description="of the server, PEM", strict=False)
    key: Path = Field(description="of the server's certificate, PEM", strict=False)
    client_ca: Path | None = Field(
        None, description="clients must show a certificate of this authority", strict=False
    )
    ca: Path | None = Field(
        None,
        description="the authority by which this project's clients trust the server",
        strict=False,
    )
    client_certificate: Path | None = Field(
        None, description="the certificate that they show where `client_ca` is set", strict=False
    )
    client_key: Path | None = Field(None, description="of client_certificate", strict=False)

    @model_validator(mode="after")
    def _client_whole(self) -> Self:
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key go together")
        return self


class EdgeTls(Strict):
    """TLS of the gateway's port; mutual with `client_ca`."""

    certificate: Path = Field(description="of the gateway, PEM, with its chain", strict=False)
    key: Path = Field(description="of the gateway's certificate, PEM", strict=False)
    client_ca: Path | None = Field(
        None, description="clients must show a certificate of this authority", strict=False
    )


class Tracing(Strict):
    """OpenTelemetry traces of requests and of the ensemble's steps, sent over OTLP/HTTP.

    Requests with a `traceparent` are always traced, whatever the rate.
    """

    endpoint: str = Field(
        description="e.g. http://127.0.0.1:4318/v1/traces, as seen from the server",
        pattern=r"^https?://[^\s,]+$",
    )
    rate: Positive = Field(1000, description="one of this many requests is traced")
    service_name: str = Field(
        "triton", description="the name that its spans carry", pattern=r"^[\w.-]+$"
    )


class Server(Strict):
    """The Triton process and its ports; 0 lets the system choose a free one."""

    mode: Literal["embedded", "docker"] = Field(
        "embedded",
        description="embedded: tritonserver 2.51 here, for development; docker: containers",
    )
    address: str = Field("127.0.0.1", description="loopback by default")
    grpc_port: Port = Field(8001, description="of inference over gRPC, streams included")
    http_port: Port = Field(8000, description="of inference over HTTP, never with TLS")
    metrics_port: Port = Field(8002, description="of the page that Prometheus reads")
    readiness_port: Port | None = Field(
        None,
        description="where the embedded server tells your own gateway whether to send requests; "
        "not ready as soon as it is to stop; none when absent",
    )
    ready_timeout_seconds: Positive = Field(
        120, description="how long `up` waits until every model is ready"
    )
    restart: bool = Field(
        True,
        description="start the server again when it crashes: at most five times in ten minutes "
        "where it is embedded, always in containers",
    )
    exit_timeout_seconds: Positive = Field(30, description="how long `down` lets streams finish")
    cache_size: CacheSize = Field(
        "64MiB",
        description="memory for the answers of all models with `serving.cache`, e.g. 1GiB; set "
        "aside at the start, the answers that were asked for longest ago make room",
    )
    cache_redis: RedisAddress | None = Field(
        None,
        description="HOST:PORT of a Redis that keeps these answers instead, for all replicas; in "
        "containers of NVIDIA's images only",
    )
    tls: Tls | None = Field(None, description="of the gRPC port; plain when absent")
    tracing: Tracing | None = Field(None, description="where traces go; none when absent")
    accept_known_holes: bool = Field(
        False, description="let a release with known vulnerabilities listen beyond loopback"
    )

    @property
    def cache_bytes(self) -> int:
        """`cache_size` in bytes."""
        return parse_bytes(self.cache_size)

    @property
    def wanted_ports(self) -> dict[str, int]:
        """Each port of the embedded server by its field, gRPC's, HTTP's, metrics', then others."""
        names = ("grpc_port", "http_port", "metrics_port", "readiness_port")
        return {name: port for name in names if (port := getattr(self, name)) is not None}


class Docker(Strict):
    """Containers of `tritonctl deploy compose` and of `server.mode: docker`."""

    image: str | None = Field(
        None, description="of Triton, best by digest; built from docker/*.Dockerfile when absent"
    )
    base_image: str | None = Field(
        None, description="what that build starts from; the compatibility table's when absent"
    )
    memory: str | None = Field(
        None, description="limit of the container, e.g. 8g; computed when absent"
    )
    shm_size: str | None = Field(None, description="of /dev/shm, e.g. 1g; computed when absent")
    replicas: Positive = Field(1, description="servers behind the gateway")


class Tenant(Strict):
    """Who may use the service, through the gateway and through the frontend, and how much of it."""

    api_key_file: Path = Field(
        description="a file of one line, the key that this tenant sends", strict=False
    )
    requests_per_minute: Positive | None = Field(
        None, description="beyond: RESOURCE_EXHAUSTED at the gateway, 429 at the frontend"
    )
    burst: Positive | None = Field(
        None, description="at once at the gateway; requests_per_minute when absent"
    )
    tokens_per_minute: Positive | None = Field(
        None,
        description="at the frontend, in no 60 seconds more: prompt and `max_tokens` of every "
        "choice are reserved at admission, what was not used is given back; beyond: 429",
    )
    concurrency: Positive | None = Field(
        None, description="requests in flight at the frontend; beyond: 429"
    )
    priority: Positive | None = Field(
        None,
        description="of its requests at the frontend: 1 goes first, the model's default level "
        "when absent",
    )

    @model_validator(mode="after")
    def _burst_of_something(self) -> Self:
        if self.burst is not None and self.requests_per_minute is None:
            raise ValueError("burst needs requests_per_minute: without it nothing is limited")
        return self


class Gateway(Strict):
    """Envoy before the replicas: gRPC streams and REST, keys, limits, retries, health checks."""

    address: str = Field("127.0.0.1", description="loopback by default")
    port: Port = Field(8080, description="of gRPC and REST together, where clients connect")
    admin_port: Port = Field(9901, description="metrics and health, always on loopback")
    image: str | None = Field(None, description="of Envoy, best by digest")
    tls: EdgeTls | None = Field(None, description="at the edge")
    tenants: dict[TenantName, Tenant] = Field(
        {}, description="of the frontend, too; none: open to everyone who reaches the port"
    )
    frontend_secret_file: Path | None = Field(
        None,
        description="a file of one line, by which the frontend knows the gateway and takes its "
        "word for a tenant; when absent, the frontend gets the keys and checks them itself",
        strict=False,
    )
    max_requests: Positive = Field(
        1024, description="in flight, of gRPC and of REST each; beyond: UNAVAILABLE"
    )
    retries: Annotated[int, Field(ge=0, le=5)] = Field(
        2, description="of a request that no server has started to answer"
    )
    stream_idle_seconds: Positive = Field(300, description="a stream silent for this long is ended")
    trust_traces: bool = Field(
        False, description="let clients' traceparent through: Triton traces each such request"
    )

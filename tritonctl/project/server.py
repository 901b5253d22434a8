# SPDX-License-Identifier: Apache-2.0
"""The sections of the project file for Triton's server: ports, access, containers.

They contain paths of keys and certificates, never their content.
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
# The name is part of a file name in the gateway's container.
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


# Triton's local cache does not start with less, because of its own records.
_MIN_CACHE_BYTES = 1 << 20


def _cache_size(text: str) -> str:
    try:
        size = parse_bytes(text)
    except UsageError as error:
        raise ValueError(f"{error.problem}: {error.remedy}") from error
    if size < _MIN_CACHE_BYTES:
        raise ValueError(f"{human_bytes(size)} is too small for a cache: write 1MiB or more")
    return text


CacheSize = Annotated[str, AfterValidator(_cache_size)]
# Address of a Redis, as tritonserver expects it.
_MAX_PORT = 65535


def _redis_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host) or not port.isdecimal():
        raise ValueError("write HOST:PORT without a password, e.g. redis:6379")
    if not 0 < int(port) <= _MAX_PORT:
        raise ValueError(f"{port} is not a port: 1 to {_MAX_PORT}")
    return text


RedisAddress = Annotated[str, AfterValidator(_redis_address)]


class Tls(Strict):
    """TLS on the gRPC port; mutual with `client_ca`. `tritonctl certs` creates development keys.

    Triton's HTTP and metrics ports have no TLS: they stay on loopback.
    """

    certificate: Path = Field(description="certificate of the server, PEM", strict=False)
    key: Path = Field(description="private key of the server, PEM", strict=False)
    client_ca: Path | None = Field(
        None, description="authority of the certificates that clients must present", strict=False
    )
    ca: Path | None = Field(
        None,
        description="authority of the server's certificate, for this project's clients",
        strict=False,
    )
    client_certificate: Path | None = Field(
        None, description="certificate of this project's clients, for `client_ca`", strict=False
    )
    client_key: Path | None = Field(
        None, description="private key of client_certificate", strict=False
    )

    @model_validator(mode="after")
    def _client_pair_complete(self) -> Self:
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key need each other")
        return self


class EdgeTls(Strict):
    """TLS of the gateway's port; mutual with `client_ca`."""

    certificate: Path = Field(
        description="certificate of the gateway with its chain, PEM", strict=False
    )
    key: Path = Field(description="private key of the gateway, PEM", strict=False)
    client_ca: Path | None = Field(
        None, description="authority of the certificates that clients must present", strict=False
    )


class Tracing(Strict):
    """OpenTelemetry traces of requests and of the ensemble's steps, sent over OTLP/HTTP.

    Requests with a `traceparent` are always traced.
    """

    endpoint: str = Field(
        description="OTLP address as seen from the server, e.g. http://127.0.0.1:4318/v1/traces",
        pattern=r"^https?://[^\s,]+$",
    )
    rate: Positive = Field(1000, description="one of this many requests is traced")
    service_name: str = Field(
        "triton", description="service name of the spans", pattern=r"^[\w.-]+$"
    )


class Server(Strict):
    """The Triton process and its ports; 0 lets the system choose a free one."""

    mode: Literal["embedded", "docker"] = Field(
        "embedded",
        description="embedded: local tritonserver 2.51, for development; docker: containers",
    )
    address: str = Field("127.0.0.1", description="listening address; loopback by default")
    grpc_port: Port = Field(8001, description="port of inference over gRPC, including streams")
    http_port: Port = Field(8000, description="port of inference over HTTP, without TLS")
    metrics_port: Port = Field(8002, description="port of the Prometheus metrics")
    readiness_port: Port | None = Field(
        None,
        description="port of the embedded server's readiness probe for your gateway; it turns not "
        "ready before the server stops; off when absent",
    )
    ready_timeout_seconds: Positive = Field(
        120, description="how long `up` waits until every model is ready"
    )
    restart: bool = Field(
        True,
        description="restart the server after a crash: an embedded one at most five times in ten "
        "minutes, containers always",
    )
    exit_timeout_seconds: Positive = Field(30, description="how long `down` lets streams finish")
    cache_size: CacheSize = Field(
        "64MiB",
        description="memory for the answers of all models with `serving.cache`, e.g. 1GiB; "
        "allocated at the start, the least recently used answers are evicted",
    )
    cache_redis: RedisAddress | None = Field(
        None,
        description="HOST:PORT of a Redis that stores these answers instead, for all replicas; "
        "only in containers of NVIDIA's images",
    )
    tls: Tls | None = Field(None, description="TLS of the gRPC port; plain text when absent")
    tracing: Tracing | None = Field(None, description="export of traces; off when absent")
    accept_known_holes: bool = Field(
        False, description="let a release with known vulnerabilities listen beyond loopback"
    )

    @property
    def cache_bytes(self) -> int:
        """`cache_size` in bytes."""
        return parse_bytes(self.cache_size)

    @property
    def configured_ports(self) -> dict[str, int]:
        """Ports of the embedded server by field name: gRPC, HTTP, metrics, readiness."""
        names = ("grpc_port", "http_port", "metrics_port", "readiness_port")
        return {name: port for name in names if (port := getattr(self, name)) is not None}


class Docker(Strict):
    """Containers of `tritonctl deploy compose` and of `server.mode: docker`."""

    image: str | None = Field(
        None, description="Triton image, best by digest; built from docker/*.Dockerfile when absent"
    )
    base_image: str | None = Field(
        None, description="base image of that build; the compatibility table's when absent"
    )
    memory: str | None = Field(
        None, description="memory limit of the container, e.g. 8g; computed when absent"
    )
    shm_size: str | None = Field(
        None, description="size of /dev/shm, e.g. 1g; computed when absent"
    )
    replicas: Positive = Field(1, description="servers behind the gateway")


class Tenant(Strict):
    """A client of gateway and frontend, with its limits."""

    api_key_file: Path = Field(
        description="file with the tenant's API key on one line", strict=False
    )
    requests_per_minute: Positive | None = Field(
        None, description="limit; beyond: RESOURCE_EXHAUSTED at the gateway, 429 at the frontend"
    )
    burst: Positive | None = Field(
        None, description="burst limit of the gateway; requests_per_minute when absent"
    )
    tokens_per_minute: Positive | None = Field(
        None,
        description="limit of the frontend in any 60 seconds: prompt and `max_tokens` of every "
        "choice are reserved at admission, unused tokens are returned; beyond: 429",
    )
    concurrency: Positive | None = Field(
        None, description="limit of requests in flight at the frontend; beyond: 429"
    )
    priority: Positive | None = Field(
        None,
        description="priority of its requests at the frontend, 1 is highest; the model's default "
        "level when absent",
    )

    allow_raw: bool = Field(
        False,
        description="pass its gRPC and `/v2` inference on to Triton although it has limits that "
        "only the frontend keeps: tokens_per_minute, concurrency",
    )

    @property
    def is_frontend_only(self) -> bool:
        """Whether inference by gRPC or `/v2` would bypass its limits."""
        has_frontend_limits = (self.tokens_per_minute or self.concurrency) is not None
        return has_frontend_limits and not self.allow_raw

    @model_validator(mode="after")
    def _burst_of_something(self) -> Self:
        if self.burst is not None and self.requests_per_minute is None:
            raise ValueError("burst needs requests_per_minute: without it there is no limit")
        return self


class Gateway(Strict):
    """Envoy in front of the replicas: gRPC and REST, keys, limits, retries, health checks."""

    address: str = Field("127.0.0.1", description="listening address; loopback by default")
    port: Port = Field(8080, description="port of gRPC and REST for clients")
    admin_port: Port = Field(9901, description="port of metrics and health, always on loopback")
    image: str | None = Field(None, description="Envoy image, best by digest")
    tls: EdgeTls | None = Field(None, description="TLS of the gateway's port")
    tenants: dict[TenantName, Tenant] = Field(
        {}, description="tenants of gateway and frontend; without any, access is open"
    )
    frontend_secret_file: Path | None = Field(
        None,
        description="file with a secret on one line. By it the frontend recognises the gateway "
        "and trusts its tenant header; when absent, the frontend checks the API keys itself",
        strict=False,
    )
    max_requests: Positive = Field(
        1024, description="limit of requests in flight, per protocol; beyond: UNAVAILABLE"
    )
    retries: Annotated[int, Field(ge=0, le=5)] = Field(
        2, description="retries of a request that no server has started to answer"
    )
    stream_idle_seconds: Positive = Field(300, description="idle timeout of a stream")
    trust_traces: bool = Field(
        False, description="pass clients' traceparent on: Triton traces each such request"
    )

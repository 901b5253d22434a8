# SPDX-License-Identifier: Apache-2.0
"""Inspect a running Triton with read-only calls of its gRPC protocol.

No call changes the server: none loads a model, writes a setting or registers a region. A protocol
counts as open if it answers its harmless call without a token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tritonctl.errors import RequestRejectedError, UsageError
from tritonctl.host.addresses import is_loopback
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.error_map import NAMED_SERVER, is_restricted, streaming_model_error
from tritonctl.protocol.server_description import (
    IndexEntry,
    ServedModel,
    ServerDescription,
    TensorMetadata,
    printable,
)

_SECONDS = 10.0
_LISTENING = "0A"
# A read-only request of each API group, by the group's name in --grpc-restricted-protocol.
_PROBE_REQUESTS: Mapping[str, type[Any]] = {
    "model-repository": service_pb2.RepositoryIndexRequest,
    "shared-memory": service_pb2.SystemSharedMemoryStatusRequest,
    "logging": service_pb2.LogSettingsRequest,
    "trace": service_pb2.TraceSettingRequest,
    "statistics": service_pb2.ModelStatisticsRequest,
}


def inspect(endpoint: Endpoint, names: Collection[str] = ()) -> ServerDescription:
    """Describe a server and its models; describe `names` if it does not list its models.

    Raises ServerError if it is unreachable, UsageError for an invalid address.
    """
    beyond = is_reachable_remotely(endpoint.url)
    with Connection(endpoint, NAMED_SERVER) as connection:
        server = _Server(connection)
        metadata = server.metadata()
        index = server.index()
        ready = {entry.name for entry in index or () if entry.state == "READY"}
        models, unserved = server.models(ready if index is not None else names)
        return ServerDescription(
            url=endpoint.url,
            tls=endpoint.tls is not None,
            version=printable(metadata.version) if metadata else "",
            index=index,
            models=models,
            unserved=unserved,
            unrestricted_api_groups=server.unrestricted_api_groups(),
            beyond_loopback=beyond,
        )


def model_inputs(endpoint: Endpoint, model: str) -> tuple[TensorMetadata, ...]:
    """Return the inputs of a ready model that answers once, batch dimension first.

    Raises RequestRejectedError for a model that streams or is not deployed, ServerError without an
    answer.
    """
    with Connection(endpoint, NAMED_SERVER) as connection:
        server = _Server(connection)
        server.metadata()
        models, unserved = server.models([model])
    if model not in models:
        raise RequestRejectedError(
            f"{endpoint.url} does not serve {model}: {unserved[model]}",
            remedy="`tritonctl status` lists the models of the project's server",
        )
    served_model = models[model]
    if served_model.streams:
        text = any(tensor.name == "text_input" for tensor in served_model.inputs)
        raise streaming_model_error(model, text=text)
    return served_model.inputs


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _send(self, request: Any, *, admin: bool = False) -> Any:
        """Raises grpc.RpcError: a refusal by Triton is also a result."""
        return self._connection.send(request, seconds=_SECONDS, admin=admin)

    def metadata(self) -> Any:
        """Return the server's metadata; None if it is restricted."""
        try:
            return self._send(service_pb2.ServerMetadataRequest())
        except grpc.RpcError as error:
            if is_restricted(error):
                return None
            raise self._connection.to_tritonctl_error(error) from error

    def index(self) -> tuple[IndexEntry, ...] | None:
        """Return the repository index, using the token if available; None if refused."""
        try:
            answer = self._send(service_pb2.RepositoryIndexRequest(), admin=True)
        except grpc.RpcError:
            return None
        return tuple(
            IndexEntry(*map(printable, (model.name, model.version, model.state, model.reason)))
            for model in answer.models
        )

    def models(self, names: Collection[str]) -> tuple[dict[str, ServedModel], dict[str, str]]:
        """Return the models that answer, and Triton's messages about the others."""
        models, unserved = {}, {}
        for name in sorted(names):
            try:
                answer = self._send(service_pb2.ModelMetadataRequest(name=name))
            except grpc.RpcError as error:
                unserved[name] = printable(error.details() or error.code().name)
                continue
            config = self._config(name)
            models[name] = ServedModel(
                name,
                tuple(answer.versions),
                _tensors(answer.inputs),
                _tensors(answer.outputs),
                config and config.SerializeToString(),
                bool(config and config.model_transaction_policy.decoupled),
            )
        return models, unserved

    def _config(self, name: str) -> Any:
        try:
            return self._send(service_pb2.ModelConfigRequest(name=name)).config
        except grpc.RpcError:  # restricted, or unloaded in between
            return None

    def unrestricted_api_groups(self) -> frozenset[str]:
        """Return the API groups that answer their probe request without a token."""
        return frozenset(
            name for name, request in _PROBE_REQUESTS.items() if self._answers(request)
        )

    def _answers(self, request: type[Any]) -> bool:
        try:
            self._send(request())
        except grpc.RpcError:
            return False
        return True


def _tensors(tensors: Any) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(each.name, each.datatype, tuple(each.shape)) for each in tensors)


def is_reachable_remotely(url: str) -> bool:
    """Whether other machines may reach the port.

    For a loopback address the kernel's list of listening sockets decides: the server may listen on
    all addresses. Raises UsageError unless it is host:port.
    """
    host, _, port = url.rpartition(":")
    if not host or "/" in url or not port.isdecimal():
        raise UsageError(
            f"{url!r} is not the address of a gRPC endpoint",
            remedy="give host:port, for example 127.0.0.1:8001",
        )
    return not is_loopback(host) or any(not a.is_loopback for a in _listening(int(port)))


def _listening(port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the local addresses that listen on the port; [] if unknown."""
    addresses = []
    for file in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", file).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == _LISTENING and int(number, 16) == port:
                addresses.append(_address(address))
    return addresses


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address of /proc/net/tcp: words of four bytes in native byte order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    # gRPC listens on IPv4 through sockets of IPv6.
    return (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address

# SPDX-License-Identifier: Apache-2.0
"""Asks any running Triton about itself, through read-only calls of its gRPC protocol.

Nothing here changes the server: no model is loaded, no setting written, no region registered. A
protocol is open to strangers when it answers its harmless call without a token.
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
from tritonctl.protocol.error_map import NAMED_SERVER, is_restricted, streaming_model
from tritonctl.protocol.server_description import (
    IndexEntry,
    ServedModel,
    ServerDescription,
    TensorMetadata,
    printable,
)

_SECONDS = 10.0
_LISTENING = "0A"
# The harmless call of each of Triton's protocols, by its name in --grpc-restricted-protocol.
_HARMLESS: Mapping[str, type[Any]] = {
    "model-repository": service_pb2.RepositoryIndexRequest,
    "shared-memory": service_pb2.SystemSharedMemoryStatusRequest,
    "logging": service_pb2.LogSettingsRequest,
    "trace": service_pb2.TraceSettingRequest,
    "statistics": service_pb2.ModelStatisticsRequest,
}


def inspect(endpoint: Endpoint, names: Collection[str] = ()) -> ServerDescription:
    """Ask a server about itself and its models; about `names` when it does not list its models.

    Raises ServerError when it cannot be reached, UsageError for an invalid address.
    """
    beyond = reached_from_elsewhere(endpoint.url)
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
            open_protocols=server.open_protocols(),
            beyond_loopback=beyond,
        )


def model_inputs(endpoint: Endpoint, model: str) -> tuple[TensorMetadata, ...]:
    """The inputs of a ready model that answers once, batch dimension first.

    Raises RequestRejectedError for a model that streams or is not served, ServerError without an
    answer.
    """
    with Connection(endpoint, NAMED_SERVER) as connection:
        server = _Server(connection)
        server.metadata()
        served, unserved = server.models([model])
    if model not in served:
        raise RequestRejectedError(
            f"{endpoint.url} does not serve {model}: {unserved[model]}",
            remedy="`tritonctl status` lists the models of the project's server",
        )
    answering = served[model]
    if answering.streams:
        text = any(tensor.name == "text_input" for tensor in answering.inputs)
        raise streaming_model(model, text=text)
    return answering.inputs


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _send(self, request: Any, *, admin: bool = False) -> Any:
        """Raises grpc.RpcError: Triton's refusal of a call is an answer, too."""
        return self._connection.send(request, seconds=_SECONDS, admin=admin)

    def metadata(self) -> Any:
        """The server's metadata; None where even that is restricted."""
        try:
            return self._send(service_pb2.ServerMetadataRequest())
        except grpc.RpcError as error:
            if is_restricted(error):
                return None
            raise self._connection.explained(error) from error

    def index(self) -> tuple[IndexEntry, ...] | None:
        """The repository index, asked for with the token if we have one; None if refused."""
        try:
            answer = self._send(service_pb2.RepositoryIndexRequest(), admin=True)
        except grpc.RpcError:
            return None
        return tuple(
            IndexEntry(*map(printable, (model.name, model.version, model.state, model.reason)))
            for model in answer.models
        )

    def models(self, names: Collection[str]) -> tuple[dict[str, ServedModel], dict[str, str]]:
        """The models that answer, and Triton's words about the others."""
        served, unserved = {}, {}
        for name in sorted(names):
            try:
                answer = self._send(service_pb2.ModelMetadataRequest(name=name))
            except grpc.RpcError as error:
                unserved[name] = printable(error.details() or error.code().name)
                continue
            config = self._config(name)
            served[name] = ServedModel(
                name,
                tuple(answer.versions),
                _tensors(answer.inputs),
                _tensors(answer.outputs),
                config and config.SerializeToString(),
                bool(config and config.model_transaction_policy.decoupled),
            )
        return served, unserved

    def _config(self, name: str) -> Any:
        try:
            return self._send(service_pb2.ModelConfigRequest(name=name)).config
        except grpc.RpcError:  # restricted, or unloaded in between
            return None

    def open_protocols(self) -> frozenset[str]:
        """The protocols that answer their harmless call without a token."""
        return frozenset(name for name, request in _HARMLESS.items() if self._answers(request))

    def _answers(self, request: type[Any]) -> bool:
        try:
            self._send(request())
        except grpc.RpcError:
            return False
        return True


def _tensors(tensors: Any) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(each.name, each.datatype, tuple(each.shape)) for each in tensors)


def reached_from_elsewhere(url: str) -> bool:
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
    """Addresses of this machine on which that port is open; [] where unknown."""
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
    """From /proc/net/tcp: words of four bytes, in the machine's own order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    # gRPC listens on IPv4 through sockets of IPv6.
    return (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address

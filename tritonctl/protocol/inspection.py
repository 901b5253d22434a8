# SPDX-License-Identifier: Apache-2.0
"""What a running Triton says of itself, any Triton: read-only calls of its gRPC protocol.

Nothing here changes anything: no model is loaded, no setting written, no region registered. Whether
a protocol is open to strangers is found out by its harmless call, without any token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.compatibility.exposure import is_loopback
from tritonctl.errors import RequestRejectedError, ServerError, TritonctlError, UsageError
from tritonctl.protocol.channel import Endpoint, connection_remedy, refused_key
from tritonctl.protocol.server_description import (
    IndexEntry,
    Inspection,
    ServedModel,
    TensorMetadata,
    printable,
)

_SECONDS = 10.0
# Triton's words for a protocol that takes a token.
_RESTRICTED = "restricted"
_LISTENING = "0A"
# What is asked of each of Triton's protocols, by the name it has in --grpc-restricted-protocol.
_HARMLESS: Mapping[str, tuple[str, type[Any]]] = {
    "model-repository": ("RepositoryIndex", service_pb2.RepositoryIndexRequest),
    "shared-memory": ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest),
    "logging": ("LogSettings", service_pb2.LogSettingsRequest),
    "trace": ("TraceSetting", service_pb2.TraceSettingRequest),
    "statistics": ("ModelStatistics", service_pb2.ModelStatisticsRequest),
}


def inspect(endpoint: Endpoint, names: Collection[str] = ()) -> Inspection:
    """Ask a server about itself, its models and those of these names.

    Raises ServerError when it cannot be reached, UsageError for what is no address.
    """
    beyond = reached_from_elsewhere(endpoint.url)
    with endpoint.channel() as channel:
        server = _Server(endpoint, channel)
        metadata = server.metadata()
        index = server.index()
        ready = {entry.name for entry in index or () if entry.state == "READY"}
        asked = ready if index is not None else {*names}
        models, unserved = server.models(asked)
        return Inspection(
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
    """The inputs that a ready model declares, batch dimension first.

    Raises RequestRejectedError for a model that is not served, ServerError when nobody answers.
    """
    with endpoint.channel() as channel:
        server = _Server(endpoint, channel)
        server.metadata()
        served, unserved = server.models([model])
    if model not in served:
        raise RequestRejectedError(
            f"{endpoint.url} does not serve {model}: {unserved[model]}",
            remedy="`tritonctl status` lists the models of the project's server",
        )
    return served[model].inputs


class _Server:
    def __init__(self, endpoint: Endpoint, channel: grpc.Channel) -> None:
        self._endpoint = endpoint
        self._metadata = endpoint.metadata
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def metadata(self) -> Any:
        """The server's own; None where even that is restricted."""
        try:
            return self._stub.ServerMetadata(
                service_pb2.ServerMetadataRequest(), timeout=_SECONDS, metadata=self._metadata
            )
        except grpc.RpcError as error:
            if _RESTRICTED in (error.details() or ""):
                return None
            raise _unreachable(error, self._endpoint.url) from error

    def index(self) -> tuple[IndexEntry, ...] | None:
        """With the token, where we have one."""
        try:
            answer = self._stub.RepositoryIndex(
                service_pb2.RepositoryIndexRequest(),
                timeout=_SECONDS,
                metadata=self._endpoint.admin_metadata,
            )
        except grpc.RpcError:
            return None
        return tuple(
            IndexEntry(*map(printable, (model.name, model.version, model.state, model.reason)))
            for model in answer.models
        )

    def models(self, names: Collection[str]) -> tuple[dict[str, ServedModel], dict[str, str]]:
        """Those that answer, and Triton's words about the others."""
        served, unserved = {}, {}
        for name in sorted(names):
            request = service_pb2.ModelMetadataRequest(name=name)
            try:
                answer = self._stub.ModelMetadata(
                    request, timeout=_SECONDS, metadata=self._metadata
                )
            except grpc.RpcError as error:
                unserved[name] = printable(error.details() or error.code().name)
                continue
            served[name] = ServedModel(
                name,
                tuple(answer.versions),
                _tensors(answer.inputs),
                _tensors(answer.outputs),
                self._config(name),
            )
        return served, unserved

    def _config(self, name: str) -> bytes | None:
        request = service_pb2.ModelConfigRequest(name=name)
        try:
            answer = self._stub.ModelConfig(request, timeout=_SECONDS, metadata=self._metadata)
        except grpc.RpcError:  # restricted, or unloaded in between
            return None
        content: bytes = answer.config.SerializeToString()
        return content

    def open_protocols(self) -> frozenset[str]:
        """Those whose harmless call is answered to somebody who knows no token."""
        return frozenset(name for name in _HARMLESS if self._answers(*_HARMLESS[name]))

    def _answers(self, call: str, request: type[Any]) -> bool:
        try:
            getattr(self._stub, call)(request(), timeout=_SECONDS, metadata=self._metadata)
        except grpc.RpcError:
            return False
        return True


def _tensors(several: Any) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(one.name, one.datatype, tuple(one.shape)) for one in several)


def _unreachable(error: Any, url: str) -> TritonctlError:
    detail = error.details() or ""
    return refused_key(error, url) or ServerError(
        f"no answer from Triton at {url}: {error.code().name}: {detail}",
        remedy=connection_remedy(detail)
        or "give host:port of Triton's gRPC endpoint (8001 unless set otherwise), and check that "
        "it runs: `tritonctl status` knows the project's server",
    )


def reached_from_elsewhere(url: str) -> bool:
    """Whether the port may be reached from other machines.

    Under a loopback address as the kernel's list of listening sockets tells: the server may listen
    on all addresses. Raises UsageError for what is not host:port.
    """
    host, _, port = url.rpartition(":")
    if not host or "/" in url or not port.isdecimal():
        raise UsageError(
            f"{url!r} is no address of a gRPC endpoint",
            remedy="give host:port, for example 127.0.0.1:8001",
        )
    return not is_loopback(host) or any(not a.is_loopback for a in _listening(int(port)))


def _listening(port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Addresses of this machine that somebody listens on, at that port; [] where unknown."""
    found = []
    for file in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", file).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == _LISTENING and int(number, 16) == port:
                found.append(_address(address))
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """As /proc/net/tcp writes it: words of four bytes, in the machine's own order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    # gRPC listens on IPv4 by sockets of IPv6.
    return (isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped) or found

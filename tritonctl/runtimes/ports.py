# SPDX-License-Identifier: Apache-2.0
"""Reserve a server's ports: free ones for port 0, a clear error for a port in use."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tritonctl.errors import ConfigurationError, HostError

_MAX_ATTEMPTS = 100  # to find consecutive free ports


@contextmanager
def reserved_ports(
    address: str, requested: Mapping[str, int], section: str = "server"
) -> Iterator[list[int]]:
    """Reserve the requested ports during the context; 0 becomes a free port.

    `requested` maps the fields of a section of tritonctl.yaml to ports. The system assigns none of
    them to another process, but servers with SO_REUSEADDR, as nearly all have, can listen on them.
    Raises HostError with the field whose port is in use.
    """
    with ExitStack() as reservations:
        with ExitStack() as probes:
            ports = [
                _reserve_port(reservations, probes, address, f"{section}.{field}", port)
                for field, port in requested.items()
            ]
        yield ports


@contextmanager
def reserved_port_range(address: str, count: int) -> Iterator[range]:
    """Reserve `count` consecutive free ports, as `reserved_ports`. Raises HostError for none."""
    for _ in range(_MAX_ATTEMPTS):
        with ExitStack() as reservations:
            [first] = reservations.enter_context(reserved_ports(address, {"port": 0}))
            ports = range(first, first + count)
            try:
                for port in ports[1:]:
                    _refuse_reserved_port(address, port)
                    _bind(reservations, address, port)
            except (OSError, OverflowError):  # in use; beyond the last port
                continue
            yield ports
            return
    raise HostError(
        f"no {count} consecutive free ports on {address}",
        remedy="stop other listeners (`ss -ltnp`), or lower `docker.replicas`",
    )


def require_ipv4_address(address: str) -> None:
    """Raise ConfigurationError for an address that tritonserver 2.51 cannot listen on.

    Its HTTP endpoint reads a host name as 255.255.255.255; its gRPC endpoint accepts no IPv6.
    """
    try:
        ipaddress.IPv4Address(address)
    except ValueError as error:
        raise ConfigurationError(
            f"server.address: {address} is not an IPv4 address; the embedded server listens "
            "only on IPv4",
            remedy="set 127.0.0.1, which only this machine reaches, or an interface's address",
        ) from error


def is_free(address: str, port: int) -> bool:
    """Whether a server can listen on the port now."""
    try:
        with reserved_ports(address, {"port": port}):
            return True
    except HostError:
        return False


def _reserve_port(
    reservations: ExitStack, probes: ExitStack, address: str, field: str, port: int
) -> int:
    """Reserve a port with a bound socket; a second, listening socket proves that it is free."""
    try:
        chosen: int = _bind(reservations, address, port).getsockname()[1]
        _bind(probes, address, chosen).listen()
    except OSError as error:
        raise _port_error(error, address, field, port) from error
    return chosen


def _refuse_reserved_port(address: str, port: int) -> None:
    """Raise OSError if another process has reserved the port, even without listening."""
    with ExitStack() as probe:
        _bind(probe, address, port, reuse_address=False)


def _bind(
    sockets: ExitStack, address: str, port: int, *, reuse_address: bool = True
) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound_socket = sockets.enter_context(socket.socket(family))
    # As in Triton: a port in TIME_WAIT is usable, a port with a listener is not.
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
    bound_socket.bind((address, port))
    return bound_socket


def _port_error(error: OSError, address: str, field: str, port: int) -> HostError:
    section = field.partition(".")[0]
    if error.errno == errno.EADDRINUSE:
        return HostError(
            f"port {port} ({field}) is in use on {address}",
            remedy=f"stop the other listener (`ss -ltnp | grep :{port}`), or let the system "
            f"choose a port: --set {field}=0",
        )
    return HostError(
        f"cannot listen on {address}:{port} ({field}): {error.strerror}",
        remedy=f"set {section}.address to an address of this machine and ports above 1023",
    )

# SPDX-License-Identifier: Apache-2.0
"""Ports of a server: free ones where the project says 0, a clear error where one is taken."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tritonctl.errors import ConfigurationError, HostError

_TRIES = 100  # until ports in a row are free


@contextmanager
def held_ports(
    address: str, wanted: Mapping[str, int], section: str = "server"
) -> Iterator[list[int]]:
    """A usable port for each wanted one, 0 replaced by a free one; reserved during the context.

    `wanted` maps the field of a section of tritonctl.yaml to its port. Raises HostError naming the
    field whose port is taken. Meanwhile the system assigns none of them to another process;
    a server that sets SO_REUSEADDR, as nearly all do, can listen on them.
    """
    with ExitStack() as held:
        with ExitStack() as probes:
            ports = [
                _claim(held, probes, address, f"{section}.{field}", port)
                for field, port in wanted.items()
            ]
        yield ports


@contextmanager
def held_range(address: str, count: int) -> Iterator[range]:
    """So many free ports in a row, reserved as those of `held_ports`. Raises HostError for none."""
    for _ in range(_TRIES):
        with ExitStack() as held:
            [first] = held.enter_context(held_ports(address, {"port": 0}))
            found = range(first, first + count)
            try:
                for port in found[1:]:
                    _refuse_held(address, port)
                    _bound(held, address, port)
            except (OSError, OverflowError):  # taken; beyond the last port
                continue
            yield found
            return
    raise HostError(
        f"no {count} free ports in a row on {address}",
        remedy="stop what listens there (`ss -ltnp`), or set `docker.replicas` lower",
    )


def refuse_names(address: str) -> None:
    """Raise ConfigurationError for an address that tritonserver 2.51 does not listen on.

    Its HTTP endpoint takes a name for 255.255.255.255, and its gRPC endpoint no IPv6 like it.
    """
    try:
        ipaddress.IPv4Address(address)
    except ValueError as error:
        raise ConfigurationError(
            f"server.address: {address} is not an IPv4 address; the embedded server listens "
            "only on those",
            remedy="write 127.0.0.1, which this machine alone reaches, or an interface's address",
        ) from error


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen on that port now."""
    try:
        with held_ports(address, {"port": port}):
            return True
    except HostError:
        return False


def _claim(held: ExitStack, probes: ExitStack, address: str, field: str, port: int) -> int:
    """Two sockets: one that is bound and does not listen reserves, one that listens finds out."""
    try:
        chosen: int = _bound(held, address, port).getsockname()[1]
        _bound(probes, address, chosen).listen()
    except OSError as error:
        raise _refusal(error, address, field, port) from error
    return chosen


def _refuse_held(address: str, port: int) -> None:
    """Raises OSError also for a port that somebody reserves, who does not listen yet."""
    with ExitStack() as probe:
        _bound(probe, address, port, shared=False)


def _bound(sockets: ExitStack, address: str, port: int, *, shared: bool = True) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = sockets.enter_context(socket.socket(family))
    # As Triton does: a port in TIME_WAIT is usable, one that a process listens on is not.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)
    made.bind((address, port))
    return made


def _refusal(error: OSError, address: str, field: str, port: int) -> HostError:
    section = field.partition(".")[0]
    if error.errno == errno.EADDRINUSE:
        return HostError(
            f"port {port} ({field}) is taken on {address}",
            remedy=f"stop what listens there (`ss -ltnp | grep :{port}`), or let the system "
            f"choose: --set {field}=0",
        )
    return HostError(
        f"cannot listen on {address}:{port} ({field}): {error.strerror}",
        remedy=f"set {section}.address to an address of this machine and ports above 1023",
    )

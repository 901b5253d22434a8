# SPDX-License-Identifier: Apache-2.0
"""Ports of the server: distinct free ones, a clear refusal of a taken one."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tritonctl.errors import HostError
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.runtimes import ports as server_ports
from tritonctl.runtimes.embedded import lifecycle
from tritonctl.runtimes.ports import is_free, reserved_port_range, reserved_ports
from tritonctl.runtimes.server_state import ServerFiles

if TYPE_CHECKING:
    from tritonctl.repository.publish import RenderedRepository

LOOPBACK = "127.0.0.1"
FIELDS = ("grpc_port", "http_port", "metrics_port")


def test_zero_becomes_distinct_free_ports() -> None:
    """Three ports that anybody may have."""
    with reserved_ports(LOOPBACK, dict.fromkeys(FIELDS, 0)) as ports:
        assert len(set(ports)) == 3
        assert all(port > 1023 for port in ports)


def test_a_given_port_stays() -> None:
    """A number that is free is taken as it is."""
    with (
        reserved_ports(LOOPBACK, {"grpc_port": 0}) as (free,),
        reserved_ports(LOOPBACK, {"http_port": 0, "grpc_port": free}) as (_, given),
    ):
        assert given == free


def test_taken_port_names_field_number_and_way_out() -> None:
    """Exit code 4, the field, the port, `--set ...=0`."""
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        wanted = {"grpc_port": 0, "http_port": port}
        with pytest.raises(HostError) as caught, reserved_ports(LOOPBACK, wanted):
            pass
    assert caught.value.exit_code == 4
    assert caught.value.problem == f"port {port} (server.http_port) is in use on {LOOPBACK}"
    assert "--set server.http_port=0" in caught.value.remedy


def test_ports_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free and reserved, each range apart from the other; none where there cannot be so many."""
    with reserved_port_range(LOOPBACK, 3) as one, reserved_port_range(LOOPBACK, 3) as other:
        assert len({*one, *other}) == 6
        assert one == range(one[0], one[0] + 3)
        for port in (*one, *other):
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind((LOOPBACK, port))
        with reserved_ports(LOOPBACK, dict.fromkeys(map(str, one), 0)) as more:
            assert not {*more} & {*one, *other}
        for port in one:  # whoever they are held for
            with socket.create_server((LOOPBACK, port)):
                pass
    assert is_free(LOOPBACK, one[1])
    monkeypatch.setattr(server_ports, "_MAX_ATTEMPTS", 1)
    with (
        pytest.raises(HostError, match="no 70000 consecutive free ports"),
        reserved_port_range(LOOPBACK, 70_000),
    ):
        raise AssertionError
    assert is_free(LOOPBACK, one[1])


def test_the_same_port_twice_is_refused() -> None:
    """Two fields cannot share a number."""
    with (
        reserved_ports(LOOPBACK, {"grpc_port": 0}) as (free,),
        pytest.raises(HostError, match=rf"port {free} \(server.http_port\) is in use"),
        reserved_ports(LOOPBACK, {"grpc_port": free, "http_port": free}),
    ):
        pass


def test_a_port_just_freed_can_be_taken_again() -> None:
    """A restart does not wait for TIME_WAIT to pass."""
    with reserved_ports(LOOPBACK, {"grpc_port": 0}) as (port,):
        with (
            socket.create_server((LOOPBACK, port)) as listening,
            socket.create_connection((LOOPBACK, port)),
        ):
            accepted, _ = listening.accept()
            accepted.close()
        with reserved_ports(LOOPBACK, {"grpc_port": port}) as again:
            assert again == [port]


def test_foreign_address_is_refused() -> None:
    """An address that is not this machine's (RFC 5737) is told with the field."""
    with (
        pytest.raises(HostError, match=r"cannot listen on 192\.0\.2\.1:0 \(server.grpc_port\)"),
        reserved_ports("192.0.2.1", {"grpc_port": 0}),
    ):
        pass


def test_a_held_port_is_for_the_server_alone() -> None:
    """It can listen there; whoever leaves the choice to the system gets other ports."""
    with reserved_ports(LOOPBACK, dict.fromkeys(FIELDS, 0)) as ports:
        assert len(set(ports)) == 3
        for port in ports:
            with socket.create_server((LOOPBACK, port)):  # with SO_REUSEADDR
                assert not is_free(LOOPBACK, port)
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind((LOOPBACK, port))


def test_is_free() -> None:
    """Tells a port that somebody listens on from one that nobody does."""
    with reserved_ports(LOOPBACK, {"grpc_port": 0}) as (port,):
        with socket.create_server((LOOPBACK, port)):
            assert not is_free(LOOPBACK, port)
        assert is_free(LOOPBACK, port)
    assert is_free(LOOPBACK, 0)


def test_a_taken_port_is_told_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installing takes minutes: not before an error that was there all along."""
    installed: list[object] = []
    monkeypatch.setattr(lifecycle, "install_server", lambda *_: installed.append(_))
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        changes = [f"server.grpc_port={port}", "server.http_port=0", "server.metrics_port=0"]
        project = load_project(bundled.find("examples/number-speller"), overrides=changes)
        with pytest.raises(HostError, match=rf"port {port} \(server.grpc_port\) is in use"):
            lifecycle.start(
                project, cast("RenderedRepository", None), "{}", ServerFiles(tmp_path), Silent()
            )
    assert installed == []

# SPDX-License-Identifier: Apache-2.0
"""Envoy's sockets: they stop it, and only its own user may connect to them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.another_user import as_nobody, as_root, open_folder
from tests.envoy_copies import copying_envoy
from tests.gateway.test_through_envoy import upstream
from tritonctl.gateway.clusters import ADMIN_SOCKET, SHADOW_SOCKET

pytestmark = pytest.mark.timed

_CONNECT = """
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(sys.argv[1])
    connection.sendall(b"POST /quitquitquit HTTP/1.0\\r\\nContent-Length: 0\\r\\n\\r\\n")
    print(connection.recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""


@as_root
def test_another_user_cannot_stop_it() -> None:
    """Neither through the admin socket nor through that of the copies."""
    with (
        open_folder() as root,
        upstream() as (server, _),
        copying_envoy(root, [server], root / "copies.sock") as envoy,
    ):
        for name in (ADMIN_SOCKET, SHADOW_SOCKET):
            socket = root / name
            assert stat.S_IMODE(socket.stat().st_mode) == 0o600
            assert as_nobody(_CONNECT, socket) == "PermissionError\n"
        assert envoy.admin("/ready") == "LIVE\n"


def test_a_killed_one_leaves_a_socket(tmp_path: Path) -> None:
    """The next one takes its place."""
    with upstream() as (server, _), copying_envoy(tmp_path, [server], tmp_path / "c") as envoy:
        assert envoy.process is not None
        envoy.process.kill()
        envoy.process.wait()
        assert (tmp_path / ADMIN_SOCKET).exists()
        envoy.start()
        assert envoy.admin("/ready") == "LIVE\n"

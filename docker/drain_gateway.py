# SPDX-License-Identifier: Apache-2.0
"""Run Envoy and let streams finish on shutdown, which Envoy alone does not do.

Usage: drain_gateway.py envoy --config-path FILE ...      or      drain_gateway.py --healthy

On SIGTERM or SIGINT, Envoy accepts no new connections, sends clients GOAWAY, and exits once no
request is active; on a second signal it exits at once. The container's stop_grace_period limits the
wait. Standard library only.
"""

from __future__ import annotations

import http.client
import itertools
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_SOCKET = re.compile(r"[./\w-]*/tritonctl-gateway-admin\.sock")
_ACTIVE_REQUESTS = "http.inference.downstream_rq_active"
_CONFIGURATION = "/etc/envoy/envoy.yaml"
_POLL_SECONDS = 0.2


class _Admin(http.client.HTTPConnection):
    """Connection to Envoy's admin interface on a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(self._path)


def admin_page(admin: str, method: str, path: str) -> str:
    """Request an admin page at a socket. Raises OSError if Envoy does not answer."""
    connection = _Admin(admin)
    try:
        connection.request(method, path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def admin_socket(configuration: str) -> str:
    """Return the admin socket's path from Envoy's configuration."""
    match = _SOCKET.search(Path(configuration).read_text(encoding="utf-8"))
    if match is None:
        raise SystemExit(f"{configuration} has no admin socket: it is not tritonctl's")
    return match[0]


def active_requests(admin: str) -> int:
    """Return the number of active requests; 0 once Envoy has exited."""
    try:
        line = admin_page(admin, "GET", f"/stats?filter=^{_ACTIVE_REQUESTS}$")
        return int(line.rpartition(":")[2])
    except (OSError, ValueError, http.client.HTTPException):
        return 0


class Gateway:
    """Runs Envoy and drains it on a signal."""

    def __init__(self, command: list[str]) -> None:
        flags = ("-c", "--config-path")
        config_paths = [b for a, b in itertools.pairwise(command) if a in flags]
        self._admin = admin_socket(config_paths[0] if config_paths else _CONFIGURATION)
        self._is_draining = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # A new session, so that the terminal's Ctrl-C only reaches this program.
        self._envoy = subprocess.Popen(command, start_new_session=True)

    def run(self) -> int:
        """Wait until Envoy exits; return its exit status."""
        while not self._is_draining and self._envoy.poll() is None:
            time.sleep(_POLL_SECONDS)
        if self._envoy.poll() is None:
            self._drain()
        return self._envoy.wait()

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        if self._is_draining:
            self._envoy.terminate()
        self._is_draining = True

    def _drain(self) -> None:
        for path in ("/healthcheck/fail", "/drain_listeners"):
            admin_page(self._admin, "POST", path)
        while active_requests(self._admin) and self._envoy.poll() is None:
            time.sleep(_POLL_SECONDS)
        self._envoy.terminate()


def main(arguments: list[str]) -> int:
    """Run Envoy, or check its health."""
    if arguments == ["--healthy"]:
        return 0 if admin_page(admin_socket(_CONFIGURATION), "GET", "/ready") == "LIVE\n" else 1
    return Gateway(arguments).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

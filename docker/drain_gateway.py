# SPDX-License-Identifier: Apache-2.0
"""Runs Envoy and lets streams finish when it is stopped, which Envoy alone does not.

Usage: drain_gateway.py envoy --config-path FILE ...      or      drain_gateway.py --healthy

On SIGTERM or SIGINT: no new connections, clients are asked to leave theirs (GOAWAY), and Envoy ends
when no request is under way; at the second signal at once. Stopping a container bounds that by
its own patience (stop_grace_period). Standard library only.
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

_SOCKET = re.compile(r"@tritonctl-gateway-admin-\d+")
_UNDER_WAY = "http.inference.downstream_rq_active"
_CONFIGURATION = "/etc/envoy/envoy.yaml"
_POLL_SECONDS = 0.2


class _Admin(http.client.HTTPConnection):
    """Envoy's administration, on an abstract Unix socket."""

    def __init__(self, name: str) -> None:
        super().__init__("localhost", timeout=5)
        self._name = name

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect("\0" + self._name[1:])


def ask(name: str, method: str, path: str) -> str:
    """One page of the administration. Raises OSError when Envoy does not answer."""
    connection = _Admin(name)
    try:
        connection.request(method, path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def admin_socket(configuration: str) -> str:
    """Its name, from Envoy's configuration."""
    match = _SOCKET.search(Path(configuration).read_text(encoding="utf-8"))
    if match is None:
        raise SystemExit(f"{configuration} has no admin socket: it is not tritonctl's")
    return match[0]


def under_way(name: str) -> int:
    """Requests that Envoy is busy with; 0 once it has ended."""
    try:
        line = ask(name, "GET", f"/stats?filter=^{_UNDER_WAY}$")
        return int(line.rpartition(":")[2])
    except (OSError, ValueError, http.client.HTTPException):
        return 0


class Gateway:
    """Envoy and what a signal makes of it."""

    def __init__(self, command: list[str]) -> None:
        flags = ("-c", "--config-path")
        named = [b for a, b in itertools.pairwise(command) if a in flags]
        self._admin = admin_socket(named[0] if named else _CONFIGURATION)
        self._leaving = False
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._leave)
        # A new session: the terminal's Ctrl-C is for this program.
        self._envoy = subprocess.Popen(command, start_new_session=True)

    def run(self) -> int:
        """Until Envoy ends; its exit status."""
        while not self._leaving and self._envoy.poll() is None:
            time.sleep(_POLL_SECONDS)
        if self._envoy.poll() is None:
            self._drain()
        return self._envoy.wait()

    def _leave(self, _signal: int, _frame: FrameType | None) -> None:
        if self._leaving:
            self._envoy.terminate()
        self._leaving = True

    def _drain(self) -> None:
        for path in ("/healthcheck/fail", "/drain_listeners"):
            ask(self._admin, "POST", path)
        while under_way(self._admin) and self._envoy.poll() is None:
            time.sleep(_POLL_SECONDS)
        self._envoy.terminate()


def main(arguments: list[str]) -> int:
    """Be Envoy, or look how it is."""
    if arguments == ["--healthy"]:
        return 0 if ask(admin_socket(_CONFIGURATION), "GET", "/ready") == "LIVE\n" else 1
    return Gateway(arguments).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""`kubectl port-forward` for tests: python port_forward.py PORT, until it is ended."""

from __future__ import annotations

import signal
import socket
import sys
import threading


def forward(port: int) -> int:
    """As kubectl: a line with the local port, then a line for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        local = listening.getsockname()[1]
        _say(f"Forwarding from 127.0.0.1:{local} -> {port}")
        while True:
            taken, _ = listening.accept()
            _say(f"Handling connection for {local}")
            try:
                further = socket.create_connection(("127.0.0.1", port))
            except OSError:
                _say("error: lost connection to pod")
                return 1
            for one, other in ((taken, further), (further, taken)):
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        other.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(forward(int(sys.argv[1])))

# SPDX-License-Identifier: Apache-2.0
"""Passes on every connection of a socket that this process has inherited: forward.py FD HOST PORT.

Started in the network of a cluster's machine, by who listens outside of it. Standard library only.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress

CHUNK = 1 << 16


def main(fd: int, host: str, port: int) -> None:
    """Until killed."""
    listening = socket.socket(fileno=fd)
    while True:
        client, _ = listening.accept()
        try:
            server = socket.create_connection((host, port), timeout=10)
        except OSError:
            client.close()
            continue
        server.settimeout(None)
        for one, other in ((client, server), (server, client)):
            for each in (one, other):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=pass_on, args=(one, other), daemon=True).start()


def pass_on(one: socket.socket, other: socket.socket) -> None:
    """What one says, until it ends; where the other has gone, one learns it."""
    with suppress(OSError):
        while data := one.recv(CHUNK):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
        return
    for each in (one, other):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

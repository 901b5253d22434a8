# SPDX-License-Identifier: Apache-2.0
"""Tells gateways whether to send requests to a server: no longer, once it is to end.

Triton's own readiness goes with its port, which is too late for what is on its way. Standard
library only: it is part of the supervisor, and of the first process of containers.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

# In which a gateway, which asks every second, has seen that the server is to end.
_SEEN_SECONDS = 3.0
_WATCHED_SECONDS = 5.0
_ANSWER_SECONDS = 3
_OK = 200
_UNAVAILABLE = 503


class Readiness:
    """Answers gateways: ready as Triton is, until the server is to end."""

    def __init__(self, ready_url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ready_url = ready_url
        self._clock = clock
        self._asked: float | None = None  # when a gateway asked last
        self._ended: float | None = None

    def listen(self, address: str, port: int) -> int:
        """Answer on that port, in threads, from now on; returns it: 0 leaves it to the system.

        Raises OSError for one that is taken.
        """
        readiness = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(_OK if readiness.answer() else _UNAVAILABLE)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Silent."""

        kind = _Listening6 if ":" in address else _Listening
        server = kind((address, port), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    def answer(self) -> bool:
        """The answer to a gateway that asks now."""
        self._asked = self._clock()
        return self._ended is None and is_ready(self._ready_url)

    def end(self) -> None:
        """Refuse from now on."""
        self._ended = self._ended or self._clock()

    def is_seen(self) -> bool:
        """Whether the gateways know that the server is to end, as far as any have asked lately."""
        now = self._clock()
        watched = self._asked is not None and now - self._asked < _WATCHED_SECONDS
        return not watched or (self._ended is not None and now - self._ended >= _SEEN_SECONDS)


class _Listening(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """The client has gone: nothing to report."""


class _Listening6(_Listening):
    address_family = socket.AF_INET6


def is_ready(url: str, seconds: float = _ANSWER_SECONDS) -> bool:
    """Whether Triton says, within so many seconds, that every model is ready."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=seconds)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == _OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

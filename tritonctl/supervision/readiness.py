# SPDX-License-Identifier: Apache-2.0
"""Answer gateways' readiness probes: not ready as soon as the server shuts down or freezes.

Triton's readiness ends only when its port closes, too late for requests in flight. Standard library
only: the module is part of the supervisor and of the first process of containers.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

CONTAINER_PORT = 8003  # of a container's readiness probe
# Within this time a gateway, which probes every second, has noticed the shutdown.
_NOTICE_SECONDS = 3.0
_PROBE_MEMORY_SECONDS = 5.0
_TIMEOUT_SECONDS = 3
_OK = 200
_UNAVAILABLE = 503


class Readiness:
    """Readiness for gateways: Triton's, until the shutdown starts.

    makes_progress: whether no model is frozen.
    """

    def __init__(
        self,
        ready_url: str,
        *,
        makes_progress: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ready_url = ready_url
        self._makes_progress = makes_progress
        self._clock = clock
        self._last_probe: float | None = None  # time of the last probe
        self._refusing_since: float | None = None

    def listen(self, address: str, port: int) -> int:
        """Start answering on the port, in threads; return the port, which the system chooses for 0.

        Raises OSError if the port is in use.
        """
        readiness = self

        class ProbeHandler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(_OK if readiness.answer_probe() else _UNAVAILABLE)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        server_class = _ProbeServerIPv6 if ":" in address else _ProbeServer
        server = server_class((address, port), ProbeHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    def answer_probe(self) -> bool:
        """Record a probe and return whether the server is ready."""
        self._last_probe = self._clock()
        return self._refusing_since is None and self._makes_progress() and is_ready(self._ready_url)

    def refuse(self) -> None:
        """Report not ready from now on."""
        self._refusing_since = self._refusing_since or self._clock()

    def is_noticed(self) -> bool:
        """Whether the probing gateways know of the shutdown; True if none has probed lately."""
        now = self._clock()
        is_probed = self._last_probe is not None and now - self._last_probe < _PROBE_MEMORY_SECONDS
        return not is_probed or (
            self._refusing_since is not None and now - self._refusing_since >= _NOTICE_SECONDS
        )


class _ProbeServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Report nothing: the client has disconnected."""


class _ProbeServerIPv6(_ProbeServer):
    address_family = socket.AF_INET6


def is_ready(url: str, seconds: float = _TIMEOUT_SECONDS) -> bool:
    """Whether Triton reports every model ready within `seconds`."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=seconds)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == _OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

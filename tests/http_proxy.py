# SPDX-License-Identifier: Apache-2.0
"""A forward proxy on loopback that has one server behind it, whatever host it is asked for."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit


@dataclass
class Proxy:
    """Its address, and the hosts that it was asked for."""

    url: str = ""
    hosts: list[str] = field(default_factory=list)


@contextmanager
def proxying(behind: str) -> Iterator[Proxy]:
    """A proxy on a free port; behind: host and port that answer for every host."""
    proxy = Proxy()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._pass_on()

        def do_GET(self) -> None:
            self._pass_on()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            """Nothing is printed."""

        def _pass_on(self) -> None:
            asked = urlsplit(self.path)
            proxy.hosts.append(asked.netloc)
            headers = {"Accept": self.headers.get("Accept", "*/*")}
            request = urllib.request.Request(
                f"http://{behind}{asked.path}", method=self.command, headers=headers
            )
            try:
                with direct.open(request) as answer:
                    self._send(answer.status, answer.headers["Content-Type"], answer.read())
            except HTTPError as error:
                self._send(error.code, "text/plain", b"")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

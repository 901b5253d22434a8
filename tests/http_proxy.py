# SPDX-License-Identifier: Apache-2.0
"""A forward proxy on loopback that has one server behind it, whatever host it is asked for."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.error import HTTPError
from urllib.parse import urlsplit

from tests.loopback_http import Answering, listening


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

    class Handler(Answering):
        def answer(self) -> None:
            asked = urlsplit(self.path)
            proxy.hosts.append(asked.netloc)
            headers = {"Accept": self.headers.get("Accept", "*/*")}
            request = urllib.request.Request(
                f"http://{behind}{asked.path}", method=self.command, headers=headers
            )
            try:
                with direct.open(request) as answer:
                    kind = answer.headers["Content-Type"]
                    self.send(answer.status, answer.read(), {"Content-Type": kind})
            except HTTPError as error:
                self.send(error.code, b"")

    with listening(Handler) as proxy.url:
        yield proxy

# SPDX-License-Identifier: Apache-2.0
"""Health as Triton's repository index tells it, from an HTTP server that plays Triton."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from tests.unit.runtimes.test_server_state import STATE as SERVER
from tritonctl.runtimes.health import ServerHealth, check_health
from tritonctl.runtimes.server_state import Server

STATE = dataclasses.replace(SERVER, models=["a", "b"])


class _Index(BaseHTTPRequestHandler):
    """Answers POST /v2/repository/index."""

    status: ClassVar[int] = 200
    body: ClassVar[bytes] = b"[]"

    def do_POST(self) -> None:
        """Send what the test wants."""
        assert self.path == "/v2/repository/index"
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the base's name
        """Nothing to log."""


@pytest.fixture
def state() -> Iterator[Server]:
    """The state of a server whose HTTP port answers."""
    with HTTPServer(("127.0.0.1", 0), _Index) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield dataclasses.replace(STATE, http_port=server.server_port)
        server.shutdown()
        thread.join()


def _says(monkeypatch: pytest.MonkeyPatch, status: int, body: object) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    monkeypatch.setattr(_Index, "status", status)
    monkeypatch.setattr(_Index, "body", raw)


def test_an_earlier_version_does_not_count(state: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the index, in front of the one that is served or behind it."""
    gone = {"state": "UNAVAILABLE", "reason": "unloaded"}
    entries = [
        {"name": "a", "version": "1", **gone},
        {"name": "a", "version": "5", "state": "READY"},
        {"name": "b", "version": "2", "state": "READY"},
        {"name": "b", "version": "9", **gone},
    ]
    _says(monkeypatch, 200, entries)
    assert check_health(state).ready
    _says(monkeypatch, 200, [{"name": "a", **gone}, *entries[2:]])
    assert check_health(state).models == {"a": "UNAVAILABLE", "b": "READY"}


def test_all_ready(state: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model of ours is READY; others do not matter."""
    entries = [{"name": n, "version": "1", "state": "READY"} for n in ("a", "b")]
    _says(monkeypatch, 200, [*entries, {"name": "c", "state": "UNAVAILABLE"}])
    answer = check_health(state)
    assert answer.ready
    assert answer.summary() == "2 of 2 models ready"


def test_loading_and_missing(state: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without a state is still loading, one that is not listed is missing."""
    _says(monkeypatch, 200, [{"name": "a"}])
    answer = check_health(state)
    assert answer == ServerHealth(live=True, models={"a": "LOADING", "b": "MISSING"})
    assert not answer.ready
    assert answer.summary() == "0 of 2 models ready"


@pytest.mark.parametrize(("status", "body"), [(500, []), (400, b""), (200, b"not json")])
def test_answers_that_are_none(
    state: Server, monkeypatch: pytest.MonkeyPatch, status: int, body: object
) -> None:
    """A server that cannot tell is not live."""
    _says(monkeypatch, status, body)
    assert check_health(state) == ServerHealth(live=False, models={"a": "UNKNOWN", "b": "UNKNOWN"})


def test_nobody_listens() -> None:
    """A closed port is an answer too, and no exception."""
    assert not check_health(STATE).live

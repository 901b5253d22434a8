# SPDX-License-Identifier: Apache-2.0
"""Triton's HTTP endpoints over the standard library's client, which Locust patches for gevent."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

import gevent

from loadlib import http_wire
from loadlib.api_key import key_headers
from loadlib.failures import CONNECTION, Failure, WireError
from loadlib.listener import Listener
from loadlib.plan import Plan, RequestClass
from loadlib.prompts import Message
from loadlib.signature import Signature, check_inputs, not_answered, unreachable
from loadlib.workload import Turn

_PROBE_SECONDS = 5.0
_OK = 200
_READ = 65536


class HttpTransport:
    """The requests of a plan; as many connections as there are requests under way."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._key = key_headers(plan.api_key_file)
        self._headers = {"Content-Type": "application/json"} | self._key
        self._idle: deque[HTTPConnection] = deque()
        self._busy: set[HTTPConnection] = set()
        self._bodies: http_wire.Bodies | None = None
        self._paths = {one.name: http_wire.path(plan, one) for one in plan.classes}

    def prepare(self) -> None:
        """Refusal (exit 3) when the endpoint does not answer or the model is not ready."""
        model = self._plan.model
        try:
            with gevent.Timeout(_PROBE_SECONDS, TimeoutError("no answer in time")):
                signature = Signature.of_json(json.loads(self._get(http_wire.metadata_path(model))))
                self._get(http_wire.ready_path(model))
        except (OSError, HTTPException, ValueError, KeyError) as error:
            raise unreachable(self._plan, f"{type(error).__name__}: {error}") from error
        check_inputs(self._plan, signature)
        self._bodies = http_wire.Bodies(self._plan, signature)

    def _get(self, path: str) -> bytes:
        connection = self._connection()
        try:
            connection.request("GET", path, headers=self._key)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            self._busy.discard(connection)
            connection.close()
        if answer.status != _OK:
            raise not_answered(self._plan, answer.status, content.decode("utf-8", "replace"))
        return content

    def body(
        self, request_class: RequestClass, turn: Turn, messages: list[Message] | None
    ) -> tuple[str, bytes]:
        """Where a request goes, and what."""
        assert self._bodies is not None, "prepare() was not called"  # noqa: S101
        content = self._bodies.body(request_class, turn, messages)
        return self._paths[request_class.name], content

    def exchange(self, body: tuple[str, bytes], heard: Listener) -> str:
        """Send a request and tell `heard` of each response; WireError when it fails."""
        connection = self._connection()
        heard.cancel = lambda: _shut(connection)
        try:
            with gevent.Timeout(self._plan.timeout_seconds, TimeoutError()):
                text = self._exchange(connection, body, heard)
        except TimeoutError as error:
            raise WireError(Failure("timeout", "no whole answer in time")) from error
        # A socket that another greenlet closed has lost its attributes.
        except (OSError, HTTPException, AttributeError) as error:
            raise WireError(Failure(CONNECTION, f"{type(error).__name__}: {error}")) from error
        finally:
            self._busy.discard(connection)
            if not heard.ended or heard.stopped:
                connection.close()
        self._idle.append(connection)
        return text

    def _exchange(
        self, connection: HTTPConnection, body: tuple[str, bytes], heard: Listener
    ) -> str:
        path, content = body
        connection.request("POST", path, content, self._headers)
        answer = connection.getresponse()
        if answer.status != _OK:
            failure = http_wire.refusal(answer.status, answer.read())
            assert failure is not None  # noqa: S101 - of a status that is not 200
            raise WireError(failure)
        return self._read(answer, heard)

    def _read(self, answer: HTTPResponse, heard: Listener) -> str:
        if self._plan.kind == "tensors":
            answer.read()
            heard.responded(0, None, final=True)
            return ""
        reader = http_wire.EventReader(heard.keeps_text)
        if not (answer.getheader("Content-Type") or "").startswith("text/event-stream"):
            tokens = reader.event(answer.read())
            heard.responded(tokens, reader.input_tokens, final=True)
            return reader.text
        while content := answer.read1(_READ):
            for tokens in reader.feed(content):
                if heard.responded(tokens, reader.input_tokens, final=False):
                    return reader.text
        heard.responded(0, reader.input_tokens, final=True)
        return reader.text

    def _connection(self) -> HTTPConnection:
        connection = self._idle.pop() if self._idle else HTTPConnection(self._plan.url)
        self._busy.add(connection)
        return connection

    def close(self) -> None:
        """Close the connections; what is under way fails."""
        for connection in [*self._busy, *self._idle]:
            _shut(connection)


def _shut(connection: HTTPConnection) -> None:
    """End it under a greenlet that may be reading from it."""
    socket: Any = connection.sock
    if socket is not None:
        with suppress(OSError):
            socket.shutdown(2)

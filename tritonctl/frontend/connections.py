# SPDX-License-Identifier: Apache-2.0
"""HTTP connections with limits on the request head's size and time, and on slow readers.

uvicorn has no settings for these: a client that sends a byte a minute, or never reads, would hold
its connection for ever. It closes a connection at the first malformed byte and at the end of the
client's data, also in front of answers that are due. Envoy does better, but a frontend serves
clients without a gateway, too. So this class extends uvicorn's protocol, which is not a public
interface; of its attributes it uses `cycle`, `pipeline`, `transport` and `flow`, and its tests talk
to a real socket. Errors before a request exists have OpenAI's shape as well.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tritonctl.frontend.errors import ApiError

MAX_HEAD_BYTES = 65_536
_MALFORMED = ApiError(400, "the data is not an HTTP request", code="invalid_http")
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_CUT_OFF = ApiError(400, "the data ends within the request", code="invalid_http")
# Sent to a client that has ended its data: one that has closed its connection resets it. Clients
# skip both, the first in front of an answer, the second, a comment, between events.
_INTERIM_ANSWER = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT_CHUNK = b"3\r\n:\n\n\r\n"
_FIRST_PROBE_SECONDS, _MAX_PROBE_SECONDS = 0.1, 10.0
_TOO_LARGE = ApiError(431, f"the request's head has more than {MAX_HEAD_BYTES} bytes", code="head")


class BoundedConnection(HttpToolsProtocol):
    """One connection.

    `head_seconds`: time limit of a request's head. `read_seconds`: how long a client may stop
    reading while an answer waits for it.
    """

    def __init__(
        self, *arguments: Any, head_seconds: float, read_seconds: float, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._head_seconds = head_seconds
        self._read_seconds = read_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        self._in_body = False
        self._is_unreadable = False  # malformed, or ended: no further request will follow
        self._has_dropped = False
        self._probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first head."""
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_head_timer()
        self._stop_read_timer()
        self._stop_probes()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the head's bytes, and refuse one that is too large."""
        if self._is_unreadable:
            return
        if self._in_head:
            self._head_bytes += len(data)
            data = _without_upgrade(data)
        super().data_received(data)
        if self._is_unreadable:
            return
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        elif not self._in_body and self._is_idle:
            self._start_head_timer()  # uvicorn stops its keep-alive timer when bytes arrive

    def on_message_begin(self) -> None:
        """Start the time limit at the head's first byte."""
        self._in_head = True
        self._start_head_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the head's time limit."""
        self._stop_head_timer()
        self._head_bytes = 0
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note the end of the body."""
        self._in_head, self._in_body = True, False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Start the time limit of a client that does not read."""
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self._read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the time limit: the client has caught up."""
        self._stop_read_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's message
        """Refuse data that is not HTTP; requests in front of it get their answers."""
        self._end_requests(_MALFORMED)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that has ended its data but still reads. True keeps the connection."""
        if self._is_idle:
            is_pending = self._in_head and self._head_bytes > 0
        else:
            is_pending = self.cycle.scope["http_version"] == "1.1"  # others cannot be probed
        if not is_pending or self._is_unreadable:
            return is_pending
        self._end_requests(_CUT_OFF)
        self._probe(_FIRST_PROBE_SECONDS)
        return True

    def on_response_complete(self) -> None:
        """Close after the last answer if no further request can be read."""
        was_last = not self.pipeline
        super().on_response_complete()
        if was_last and self._is_unreadable:
            self.transport.close()

    def _end_requests(self, error: ApiError) -> None:
        """Read no further request: complete ones get answers, an incomplete one gets the error."""
        self._is_unreadable = True
        self._stop_head_timer()
        if self._is_idle or not self._in_body:
            self._refuse(error)
        elif self.pipeline:
            self.pipeline.popleft()  # it waits for the answers to others, and so cannot get one
            self._has_dropped = True
        else:
            is_unanswered = not self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._close(error if is_unanswered else None)

    def _probe(self, seconds: float) -> None:
        """Write to a client that may be gone while it waits for its answer."""
        self._probe_timer = None
        if self.transport.is_closing() or self._has_dropped:
            return
        if not self.pipeline and not self.flow.write_paused:
            if not self.cycle.response_started:
                self.transport.write(_INTERIM_ANSWER)
            elif self.cycle.chunked_encoding:  # only streams of events are sent in chunks
                self.transport.write(_COMMENT_CHUNK)
        self._probe_timer = self.loop.call_later(
            seconds, self._probe, min(2 * seconds, _MAX_PROBE_SECONDS)
        )

    def _stop_probes(self) -> None:
        if self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if not self._is_idle:  # the head belongs to a pipelined request
            self._start_head_timer()
            return
        seconds = f"{self._head_seconds:g}"
        self._refuse(
            ApiError(
                408, f"the request's head took longer than {seconds} s", code="request_timeout"
            )
        )

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _refuse(self, error: ApiError) -> None:
        """Send the error and close the connection, or close it after the answer that is due."""
        if not self._is_idle:
            self._is_unreadable = True
            self.cycle.keep_alive = False
        else:
            self._close(None if self._in_body else error)  # that body's request has its answer

    def _close(self, error: ApiError | None) -> None:
        if self.transport.is_closing():
            return
        if error is not None:
            length = str(len(error.body)).encode("ascii")
            self.transport.write(
                STATUS_LINE[error.status]
                + b"content-type: application/json\r\ncontent-length: "
                + length
                + b"\r\nconnection: close\r\n\r\n"
                + error.body
            )
        self.transport.close()


def _without_upgrade(data: bytes) -> bytes:
    """Hide an offer of another protocol, as of Java's client, whose body uvicorn would lose."""
    head, end, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nignored-upgrade:", head) + end + body

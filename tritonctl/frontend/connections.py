# SPDX-License-Identifier: Apache-2.0
"""Connections that cost little: a request's head is bounded in bytes and time, and so is a wait.

uvicorn bounds neither head nor reader: a client that sends a byte a minute, or never reads, would
hold its connection for ever. Errors before there is a request are in OpenAI's shape, too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tritonctl.frontend.errors import ApiError

MOST_HEAD_BYTES = 65_536
_MALFORMED = ApiError(400, "this is no HTTP request", code="invalid_http")
_TOO_LARGE = ApiError(431, f"the request's head has more than {MOST_HEAD_BYTES} bytes", code="head")


class BoundedConnection(HttpToolsProtocol):
    """One connection. `head_seconds`: for a request's head; `read_seconds`: the client may not
    read for so long while an answer waits for it."""

    def __init__(
        self, *arguments: Any, head_seconds: float, read_seconds: float, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._head_seconds = head_seconds
        self._read_seconds = read_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head begins."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop_head_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of heads and bodies."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        elif not self._in_body and self._is_idle:
            self._expect_head()  # uvicorn waits for no more now that bytes have come

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self._in_head = True
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._stop_head_timer()
        self._head_bytes = 0
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is, too."""
        self._in_body = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self._read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._stop_read_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words
        """What came is not HTTP."""
        self._refuse(_MALFORMED)

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._late)

    def _late(self) -> None:
        self._head_timer = None
        if not self._is_idle:  # of a request behind the one that is being answered
            self._expect_head()
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
        """Answer without a request, unless another one is being answered, and hang up."""
        if self.transport.is_closing():
            return
        if self._is_idle:
            length = str(len(error.body)).encode("ascii")
            self.transport.write(
                STATUS_LINE[error.status]
                + b"content-type: application/json\r\ncontent-length: "
                + length
                + b"\r\nconnection: close\r\n\r\n"
                + error.body
            )
        self.transport.close()

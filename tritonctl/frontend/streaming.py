# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: what surrounds a text is written once for a stream, not once for a chunk."""

from __future__ import annotations

from typing import Any

import orjson

from tritonctl.frontend.exchange import Exchange

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would gather events.
    (b"x-accel-buffering", b"no"),
)
DONE = b"data: [DONE]\n\n"
_PLACE = "\N{OBJECT REPLACEMENT CHARACTER}place of the text"


class Template:
    """Events that are equal but for one text."""

    def __init__(self, event: Any) -> None:
        """`event`: with PLACE where the text goes."""
        before, after = orjson.dumps(event).split(orjson.dumps(_PLACE))
        self._before = b"data: " + before
        self._after = after + b"\n\n"

    def of(self, text: str) -> bytes:
        """The event with this text."""
        return self._before + orjson.dumps(text) + self._after


PLACE = _PLACE


def event(data: Any) -> bytes:
    """One that is written in full."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


async def send(exchange: Exchange, data: bytes) -> None:
    """Events; the first ones begin the response. Until then an error has a status of its own."""
    if not exchange.started:
        await exchange.start(200, HEADERS)
    await exchange.write(data)

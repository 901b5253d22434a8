# SPDX-License-Identifier: Apache-2.0
"""Cancel a stream whose server is silent although its connection still works.

Only time in which the reader waits counts, so a slow reader does not make a server silent. A stream
costs one timer, and a chunk two assignments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tritonctl.errors import ServerError


class SilentServerError(ServerError):
    """A server was silent for too long; another one may continue the request."""


class SilenceTimer:
    """Measures the silence of one call of grpc.aio, or a compatible one.

    should_leave: gets the seconds of silence; called again while it returns False.
    """

    def __init__(
        self, call: Any, silence_limit: float, should_leave: Callable[[float], bool]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._call, self._silence_limit, self._should_leave = call, silence_limit, should_leave
        self._since = self._loop.time()
        self._waiting = True
        self.left_after: float | None = None
        self._timer = self._loop.call_later(silence_limit, self._check)

    def on_response(self) -> None:
        """Stop measuring: a response has arrived."""
        self._waiting = False

    def wait(self) -> None:
        """Start measuring: the reader waits for a response."""
        self._waiting, self._since = True, self._loop.time()

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _check(self) -> None:
        silent = self._loop.time() - self._since if self._waiting else 0.0
        if silent >= self._silence_limit and self._should_leave(silent):
            self.left_after = silent
            self._call.cancel()
            return
        remaining = self._silence_limit - silent
        self._timer = self._loop.call_later(
            remaining if remaining > 0 else self._silence_limit / 4, self._check
        )


@contextmanager
def watch_silence(
    call: Any, url: str, silence_limit: float | None, should_leave: Callable[[float], bool]
) -> Iterator[SilenceTimer | None]:
    """Watch a call while its responses are read. Yields None without a limit.

    silence_limit: seconds; None: no limit. Raises SilentServerError if the server was left.
    """
    if silence_limit is None:
        yield None
        return
    silence = SilenceTimer(call, silence_limit, should_leave)
    try:
        yield silence
    except (asyncio.CancelledError, grpc.RpcError):  # CancelledError comes from grpc.aio's calls
        task = asyncio.current_task()
        if silence.left_after is None or (task is not None and task.cancelling()):
            raise
        raise SilentServerError(
            f"{url} sent no response for {silence.left_after:.0f} s",
            remedy="look at `tritonctl logs`: the server, or a process of its models, hangs",
        ) from None
    finally:
        silence.close()

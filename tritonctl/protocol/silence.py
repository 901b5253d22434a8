# SPDX-License-Identifier: Apache-2.0
"""Leaves a server that has taken a stream and says nothing more: no connection breaks then.

Only the time counts in which somebody waits for the server: a reader who is slow makes nobody
silent. A stream costs a timer, and a chunk of it two assignments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tritonctl.errors import ServerError


class SilentServerError(ServerError):
    """A server has said nothing for too long; another one may continue the request."""


class Silence:
    """Of one call of grpc.aio, or one that is used as such.

    leave: whether to leave the server after so many seconds; asked again while it says no.
    """

    def __init__(self, call: Any, patience: float, leave: Callable[[float], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._call, self._patience, self._leave = call, patience, leave
        self._since = self._loop.time()
        self._waiting = True
        self.left_after: float | None = None
        self._timer = self._loop.call_later(patience, self._look)

    def heard(self) -> None:
        """A response has come."""
        self._waiting = False

    def wait(self) -> None:
        """The next one is awaited."""
        self._waiting, self._since = True, self._loop.time()

    def close(self) -> None:
        """Nobody waits any more."""
        self._timer.cancel()

    def _look(self) -> None:
        silent = self._loop.time() - self._since if self._waiting else 0.0
        if silent >= self._patience and self._leave(silent):
            self.left_after = silent
            self._call.cancel()
            return
        rest = self._patience - silent
        self._timer = self._loop.call_later(rest if rest > 0 else self._patience / 4, self._look)


@contextmanager
def listening(
    call: Any, url: str, patience: float | None, leave: Callable[[float], bool]
) -> Iterator[Silence | None]:
    """For the time in which a call's responses are read; None where patience has no end.

    Raises SilentServerError for a server that was left.
    """
    if patience is None:
        yield None
        return
    silence = Silence(call, patience, leave)
    try:
        yield silence
    except (asyncio.CancelledError, grpc.RpcError):  # the former of grpc.aio's own calls
        task = asyncio.current_task()
        if silence.left_after is None or (task is not None and task.cancelling()):
            raise
        raise SilentServerError(
            f"{url} has said nothing for {silence.left_after:.0f} s",
            remedy="look at `tritonctl logs`: the server, or a process of its models, hangs",
        ) from None
    finally:
        silence.close()

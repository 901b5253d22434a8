# SPDX-License-Identifier: Apache-2.0
"""Runs the application: uvicorn with uvloop and httptools, one process, one event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from functools import partial
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.connections import BoundedConnection
from tritonctl.frontend.draining import Draining

_KEEP_ALIVE_SECONDS = 75
# A client may stop reading for so long.
_READ_SECONDS = 60.0
# After so long at most a signal is heard.
_TICK_SECONDS = 0.4
_LOG = logging.getLogger("tritonctl.frontend")


class _Draining(uvicorn.Server):
    """Ends in order: not ready, still answering, no longer listening, streams finished."""

    def __init__(self, config: uvicorn.Config, draining: Draining) -> None:
        super().__init__(config)
        self._draining = draining

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """The first signal begins the end, the second cuts streams off."""
        if self._draining.began:
            self.should_exit = self.force_exit = True
        else:
            _LOG.info("%s: draining", signal.Signals(sig).name)
            self._draining.begin()

    async def main_loop(self) -> None:
        """uvicorn's looks ten times a second, for callbacks that there are none of here."""
        while not await self.on_tick(0):
            await asyncio.sleep(_TICK_SECONDS)

    async def on_tick(self, counter: int) -> bool:
        """Now and then; with 0 it sets the answers' date."""
        if self._draining.is_seen:
            self.should_exit = True
        return await super().on_tick(counter)


def configured(config: FrontendConfig, app: Starlette) -> uvicorn.Config:
    """How uvicorn serves it."""
    return uvicorn.Config(
        app,
        host=config.settings.address,
        port=config.settings.port,
        loop="uvloop",
        # A function that makes connections is as good as their class.
        http=partial(  # type: ignore[arg-type]
            BoundedConnection,
            head_seconds=config.settings.body_timeout_seconds,
            read_seconds=_READ_SECONDS,
        ),
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=config.exit_timeout_seconds,
        backlog=2048,
    )


def server(config: FrontendConfig) -> uvicorn.Server:
    """A server that has not begun; `run()` serves until SIGTERM or SIGINT, then drains."""
    draining = Draining()
    return _Draining(configured(config, build_app(config, draining=draining)), draining)


def run(config: FrontendConfig) -> bool:
    """Serve until SIGTERM or SIGINT; whether it came up. Its own words go to standard error."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    serving = server(config)
    serving.run()
    return serving.started

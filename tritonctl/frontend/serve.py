# SPDX-License-Identifier: Apache-2.0
"""Run the application with uvicorn, uvloop and httptools in one process and one event loop."""

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
# How long a client may stop reading.
_READ_SECONDS = 60.0
# Maximum delay until a signal takes effect.
_TICK_SECONDS = 0.4
_LOG = logging.getLogger("tritonctl.frontend")


class _DrainingServer(uvicorn.Server):
    """Ends in order: it stops being ready, then listening, then finishes its streams."""

    def __init__(self, config: uvicorn.Config, draining: Draining) -> None:
        super().__init__(config)
        self._draining = draining

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """Start draining at the first signal; cut streams off at the second."""
        if self._draining.has_started:
            self.should_exit = self.force_exit = True
        else:
            _LOG.info("%s: draining", signal.Signals(sig).name)
            self._draining.start()

    async def main_loop(self) -> None:
        """Tick less often than uvicorn, which ticks ten times a second for unused callbacks."""
        while not await self.on_tick(0):
            await asyncio.sleep(_TICK_SECONDS)

    async def on_tick(self, counter: int) -> bool:
        """Check for the end. counter: 0 updates the responses' date."""
        if self._draining.is_noticed:
            self.should_exit = True
        return await super().on_tick(counter)


def uvicorn_config(config: FrontendConfig, app: Starlette) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    return uvicorn.Config(
        app,
        host=config.settings.address,
        port=config.settings.port,
        loop="uvloop",
        # uvicorn only calls it, so a function works as well as a class.
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


def make_server(config: FrontendConfig) -> uvicorn.Server:
    """Create a server; its `run()` serves until SIGTERM or SIGINT, then drains."""
    draining = Draining()
    return _DrainingServer(uvicorn_config(config, build_app(config, draining=draining)), draining)


def run(config: FrontendConfig) -> bool:
    """Serve until SIGTERM or SIGINT; return whether it started. Logs go to standard error."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    serving = make_server(config)
    serving.run()
    return serving.started

# SPDX-License-Identifier: Apache-2.0
"""Runs the application: uvicorn with uvloop and httptools, one process, one event loop."""

from __future__ import annotations

import uvicorn

from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig

_KEEP_ALIVE_SECONDS = 75


def server(config: FrontendConfig, *, exit_timeout_seconds: int = 30) -> uvicorn.Server:
    """A server that has not begun; `run()` serves until SIGTERM or SIGINT."""
    return uvicorn.Server(
        uvicorn.Config(
            build_app(config),
            host=config.settings.address,
            port=config.settings.port,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=exit_timeout_seconds,
            backlog=2048,
        )
    )

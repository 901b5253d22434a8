# SPDX-License-Identifier: Apache-2.0
"""The frontend as `tritonctl frontend` serves it, in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.serve import uvicorn_config
from tritonctl.frontend.upstream import ClientFactory

_PATIENCE_SECONDS = 60.0


@contextmanager
def serving(config: FrontendConfig, connect: ClientFactory | None = None) -> Iterator[int]:
    """Its port, of those that are free."""
    server = uvicorn.Server(uvicorn_config(config, build_app(config, connect=connect)))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(_PATIENCE_SECONDS)
    assert not thread.is_alive()

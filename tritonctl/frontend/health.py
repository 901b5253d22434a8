# SPDX-License-Identifier: Apache-2.0
"""Whether this process lives, and whether to send it requests."""

from __future__ import annotations

from tritonctl.errors import TritonctlError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.draining import Draining
from tritonctl.frontend.errors import unavailable
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.routing.router import Router


class Health:
    """`draining`: whether the process is about to end; requests under way go on."""

    def __init__(self, config: FrontendConfig, router: Router, draining: Draining) -> None:
        self._models = config.models
        self._router = router
        self._draining = draining

    async def live(self, exchange: Exchange) -> None:
        """GET /health/live: 200 while the event loop runs."""
        await exchange.answer_json({"status": "live"})

    async def ready(self, exchange: Exchange) -> None:
        """GET /health/ready: 200 where a model answers, 503 otherwise."""
        self._draining.asked((exchange.header(b"user-agent") or b"").decode("latin-1"))
        if self._draining.began:
            raise unavailable("The frontend is ending. Send requests to another one.")
        if not await self._answers():
            raise unavailable()
        await exchange.answer_json({"status": "ready"})

    async def _answers(self) -> bool:
        try:
            async with self._router.choose("") as replica:
                for model in self._models:
                    if await replica.client.model_ready(model):
                        return True
        except TritonctlError:
            return False
        return False

# SPDX-License-Identifier: Apache-2.0
"""Liveness and readiness of the frontend."""

from __future__ import annotations

from tritonctl.errors import TritonctlError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.draining import Draining
from tritonctl.frontend.errors import unavailable
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.routing.router import Router


class HealthEndpoints:
    """Answers the health endpoints. A draining frontend is not ready, but finishes its requests."""

    def __init__(self, config: FrontendConfig, router: Router, draining: Draining) -> None:
        self._models = config.models
        self._router = router
        self._draining = draining

    async def live(self, request: HttpRequest) -> None:
        """GET /health/live: 200 while the event loop runs."""
        await request.answer_json({"status": "live"})

    async def ready(self, request: HttpRequest) -> None:
        """GET /health/ready: 200 if a model is ready and makes progress, else 503."""
        self._draining.record_probe((request.header(b"user-agent") or b"").decode("latin-1"))
        if self._draining.has_started:
            raise unavailable("The frontend is shutting down. Send requests to another replica.")
        if not await self._any_model_ready():
            raise unavailable()
        await request.answer_json({"status": "ready"})

    async def _any_model_ready(self) -> bool:
        try:
            async with self._router.choose("") as replica:
                for model in self._models:
                    if not replica.is_frozen(model) and await replica.client.model_ready(model):
                        return True
        except TritonctlError:
            return False
        return False

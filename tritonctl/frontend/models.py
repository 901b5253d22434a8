# SPDX-License-Identifier: Apache-2.0
"""Resolve model names: public models, aliases, `MODEL:ADAPTER`; and GET /v1/models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.errors import TritonctlError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.errors import ApiError, unavailable, unknown_model
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.routing.router import Router
from tritonctl.protocol.task_usage import TASK_USAGE
from tritonctl.protocol.tasks import ServedTask

_TASK_CACHE_SECONDS = 30.0
_ADAPTER = "lora_name"
# Endpoints by task.
ENDPOINTS: Mapping[str, str] = {
    "text_generation": "/v1/chat/completions, /v1/responses or /v1/completions",
    "embedding": "/v1/embeddings",
    "rerank": "/v1/rerank",
}


@dataclass(frozen=True)
class RequestTarget:
    """The model of a request."""

    model: str
    requested_name: str  # the request's `model`, which answers repeat
    adapter: str | None = None


def resolve_target(public: Collection[str], aliases: Mapping[str, str], name: str) -> RequestTarget:
    """Resolve a name. Raises ApiError 404 for an unknown name."""
    resolved = aliases.get(name, name)
    if resolved in public:
        return RequestTarget(resolved, name)
    base, _, adapter = resolved.partition(":")
    base = aliases.get(base, base)
    if adapter and base in public:
        return RequestTarget(base, name, adapter)
    raise unknown_model(name)


class Models:
    """The public models and their aliases."""

    def __init__(
        self,
        config: FrontendConfig,
        router: Router,
        *,
        created: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._public = frozenset(config.models)
        self._aliases = config.settings.aliases
        self._router = router
        self._created = int(time.time()) if created is None else created
        self._clock = clock
        self._task_cache: dict[str, tuple[float, ServedTask]] = {}

    @property
    def names(self) -> list[str]:
        """All names, models first."""
        return [*sorted(self._public), *sorted(self._aliases)]

    def target(self, name: str) -> RequestTarget:
        """Resolve a name. Raises ApiError 404 for an unknown name."""
        return resolve_target(self._public, self._aliases, name)

    async def check(self, target: RequestTarget, task: str) -> None:
        """Raise ApiError for a model of another endpoint, or one that takes no adapters.

        If no server answers, skip the check: the request itself will fail.
        """
        try:
            served_task = await self._cached_task(target.model)
        except TritonctlError:
            return
        if served_task.task.name != task:
            raise _wrong_task_error(target, served_task.task.name)
        if target.adapter is not None and _ADAPTER not in served_task.inputs:
            raise unknown_model(target.requested_name)

    async def _cached_task(self, model: str) -> ServedTask:
        """Return the model's task, cached for a while because it rarely changes."""
        since, served_task = self._task_cache.get(model, (0.0, None))
        now = self._clock()
        if served_task is None or now - since > _TASK_CACHE_SECONDS:
            async with self._router.choose(model) as replica:
                served_task = await replica.client.describe_task(model)
            self._task_cache[model] = now, served_task
        return served_task

    async def list_models(self, request: HttpRequest) -> None:
        """GET /v1/models: the ready models."""
        ready = await self._ready()
        data = [self._record(name) for name in self.names if self.target(name).model in ready]
        await request.answer_json({"object": "list", "data": data})

    async def show_model(self, request: HttpRequest) -> None:
        """GET /v1/models/NAME: one model, ready or not."""
        name = str(request.scope["path_params"]["name"])
        self.target(name)
        await request.answer_json(self._record(name))

    async def _ready(self) -> set[str]:
        async with self._router.choose("") as replica:
            try:
                answers = await asyncio.gather(*map(replica.client.model_ready, self._public))
            except TritonctlError as error:
                raise unavailable() from error
        return {name for name, ready in zip(self._public, answers, strict=True) if ready}

    def _record(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "tritonctl",
        }


def _wrong_task_error(target: RequestTarget, task: str) -> ApiError:
    purpose = TASK_USAGE[task].purpose if task in TASK_USAGE else "has another task"
    endpoint = f": use {ENDPOINTS[task]}" if task in ENDPOINTS else ""
    return ApiError(
        400,
        f"the model `{target.requested_name}` {purpose} (task {task}){endpoint}",
        code="model_not_supported",
        param="model",
    )

# SPDX-License-Identifier: Apache-2.0
"""Which model a name is: a public one, an alias, `MODEL:ADAPTER`; and GET /v1/models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.errors import TritonctlError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.errors import ApiError, unavailable, unknown_model
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.routing.router import Router
from tritonctl.protocol.asking import WAYS
from tritonctl.protocol.tasks import ServedTask

_BELIEVED_SECONDS = 30.0
_ADAPTER = "lora_name"
# The endpoint that asks a model of a task.
ENDPOINTS: Mapping[str, str] = {
    "text_generation": "/v1/chat/completions or /v1/completions",
    "embedding": "/v1/embeddings",
    "rerank": "/v1/rerank",
}


@dataclass(frozen=True)
class Target:
    """What a request's `model` is. `shown`: the name as it was asked for, which answers repeat."""

    model: str
    shown: str
    adapter: str | None = None


def target_of(public: Collection[str], aliases: Mapping[str, str], name: str) -> Target:
    """What a name means among these. Raises ApiError 404 for one that no model has."""
    meant = aliases.get(name, name)
    if meant in public:
        return Target(meant, name)
    base, _, adapter = meant.partition(":")
    base = aliases.get(base, base)
    if adapter and base in public:
        return Target(base, name, adapter)
    raise unknown_model(name)


class Models:
    """The names that there are."""

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
        self._known: dict[str, tuple[float, ServedTask]] = {}

    @property
    def names(self) -> list[str]:
        """All of them, models first."""
        return [*sorted(self._public), *sorted(self._aliases)]

    def target(self, name: str) -> Target:
        """Raises ApiError 404 for a name that no model has."""
        return target_of(self._public, self._aliases, name)

    async def check(self, target: Target, task: str) -> None:
        """Raises ApiError for a model that is for another endpoint, or takes no adapters.

        What a server that does not answer now serves, the request itself will tell.
        """
        try:
            served = await self._described(target.model)
        except TritonctlError:
            return
        if served.task.name != task:
            raise _of_another_task(target, served.task.name)
        if target.adapter is not None and _ADAPTER not in served.inputs:
            raise unknown_model(target.shown)

    async def _described(self, model: str) -> ServedTask:
        """A model changes rarely: what was true is believed for a while."""
        since, served = self._known.get(model, (0.0, None))
        now = self._clock()
        if served is None or now - since > _BELIEVED_SECONDS:
            async with self._router.choose(model) as replica:
                served = await replica.client.described(model)
            self._known[model] = now, served
        return served

    async def listing(self, exchange: Exchange) -> None:
        """GET /v1/models: those that are ready."""
        ready = await self._ready()
        data = [self._record(name) for name in self.names if self.target(name).model in ready]
        await exchange.answer_json({"object": "list", "data": data})

    async def one(self, exchange: Exchange) -> None:
        """GET /v1/models/NAME, whether it is ready or not."""
        name = str(exchange.scope["path_params"]["name"])
        self.target(name)
        await exchange.answer_json(self._record(name))

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


def _of_another_task(target: Target, task: str) -> ApiError:
    does = WAYS[task].does if task in WAYS else "does something else"
    endpoint = f": ask it by {ENDPOINTS[task]}" if task in ENDPOINTS else ""
    return ApiError(
        400,
        f"the model `{target.shown}` {does} (task {task}){endpoint}",
        code="model_not_supported",
        param="model",
    )

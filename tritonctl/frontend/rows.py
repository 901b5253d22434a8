# SPDX-License-Identifier: Apache-2.0
"""Requests of many items, each with one answer: what embeddings and rerank share."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tritonctl.errors import ItemsRejectedError, RequestRejectedError, TritonctlError
from tritonctl.frontend import errors
from tritonctl.frontend.budgets.admission import Budgets, Grant
from tritonctl.frontend.counting.worker import CountRefusedError, Tensors
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.models import Target
from tritonctl.frontend.upstream import Servers
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.delivery import Delivery

# A busy server is the client's to ask again: it learns at once.
_RETRY_SECONDS = 0.0
# How the tokenizer step names an item: python_backends/tasklib/item_errors.py.
_ITEM = re.compile(r"^(\w+)\[(\d+)\]")

Ask = Callable[[AsyncTritonClient, Delivery], Awaitable[Sequence[Any]]]


class Rows:
    """Asks models of encoders' tasks."""

    def __init__(self, servers: Servers, budgets: Budgets) -> None:
        self._servers = servers
        self._budgets = budgets

    async def ask(
        self, exchange: Exchange, target: Target, field: str, tensors: Tensors, ask: Ask
    ) -> Sequence[Any]:
        """The results of all items. `field`: of the items, with {} for an item's index.

        `tensors`: what `ask` sends, whose tokens are counted before a replica is chosen. Raises
        ApiError, of the first item that the model refuses.
        """
        facts = exchange.facts
        try:
            count = await self._servers.counter.count(target.model, tensors)
            facts.expected_tokens = count.tokens
            async with (
                self._admitted(exchange, count.at_most) as grant,
                self._servers.router.choose(target.model, work=count.tokens) as replica,
            ):
                facts.placements.append((replica.url, replica.reason))
                facts.replica = replica.url
                delivery = Delivery(
                    retry_seconds=_RETRY_SECONDS,
                    timeout=self._servers.router.silence_seconds,
                    priority=grant.priority,
                )
                found = await _answered(exchange, replica.client, delivery, ask)
                grant.settle(facts.prompt_tokens, 0)
        except CountRefusedError as error:
            item = _ITEM.match(str(error))
            told = RequestRejectedError(_ITEM.sub(r"\1", str(error)), remedy="")
            raise errors.of_tritonctl(told, field.format(item[2] if item else 0)) from error
        except ItemsRejectedError as error:
            index, first = next(iter(error.errors.items()))
            raise errors.of_tritonctl(first, field.format(index)) from error
        except TritonctlError as error:
            raise errors.of_tritonctl(error, field.partition("[")[0]) from error
        return found

    @asynccontextmanager
    async def _admitted(self, exchange: Exchange, tokens: int) -> AsyncIterator[Grant]:
        """Within the tenant's budgets. What fails as a whole costs nothing, what is left does."""
        async with self._budgets.admit(exchange.tenant, tokens, 0) as grant:
            exchange.headers = grant.headers
            exchange.facts.reserved_tokens = grant.claim.reserved
            try:
                yield grant
            except TritonctlError:
                grant.settle(0, 0)
                raise
            finally:
                exchange.facts.refunded_tokens = grant.claim.reserved - grant.used


async def _answered(
    exchange: Exchange, client: AsyncTritonClient, delivery: Delivery, ask: Ask
) -> Sequence[Any]:
    """What a server says, within a span of its own; counts its tokens."""
    call = exchange.observed.call({})

    def heard(version: str) -> None:
        exchange.facts.model_version = call.model_version = version or None

    try:
        found = await ask(client, replace(delivery, traceparent=call.traceparent, heard=heard))
        exchange.facts.prompt_tokens = sum(one.num_input_tokens or 0 for one in found)
        call.answered(exchange.facts.prompt_tokens)
    finally:
        call.end(0, 0, "")  # of one that broke off
    return found

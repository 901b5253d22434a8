# SPDX-License-Identifier: Apache-2.0
"""Requests of many items, each with one answer: what embeddings and rerank share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tritonctl.errors import ItemsRejectedError, TritonctlError
from tritonctl.frontend import errors
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.models import Target
from tritonctl.frontend.upstream import Router
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.delivery import Delivery

# A busy server is the client's to ask again: it learns at once.
_ONCE = Delivery(retry_seconds=0.0)

Ask = Callable[[AsyncTritonClient, Delivery], Awaitable[Sequence[Any]]]


class Rows:
    """Asks models of encoders' tasks."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def ask(self, exchange: Exchange, target: Target, field: str, ask: Ask) -> Sequence[Any]:
        """The results of all items. `field`: of the items, with {} for an item's index.

        Raises ApiError, of the first item that the model refuses.
        """
        try:
            async with self._router.choose(target.model) as replica:
                found = await ask(replica.client, _ONCE)
        except ItemsRejectedError as error:
            index, first = next(iter(error.errors.items()))
            raise errors.of_tritonctl(first, field.format(index)) from error
        except TritonctlError as error:
            raise errors.of_tritonctl(error, field.partition("[")[0]) from error
        exchange.facts.prompt_tokens = sum(one.num_input_tokens or 0 for one in found)
        return found

# SPDX-License-Identifier: Apache-2.0
"""Run requests with many items and one answer per item: embeddings and rerank."""

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
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.upstream import TritonServers
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.delivery import Delivery

# No retries: the client learns at once that the server is busy.
_RETRY_SECONDS = 0.0
# How the tokenizer step names an item: python_backends/tasklib/item_errors.py.
_ITEM = re.compile(r"^(\w+)\[(\d+)\]")

SendBatch = Callable[[AsyncTritonClient, Delivery], Awaitable[Sequence[Any]]]


class BatchRunner:
    """Runs requests to embedding and rerank models, within the tenants' budgets."""

    def __init__(self, servers: TritonServers, budgets: Budgets) -> None:
        self._servers = servers
        self._budgets = budgets

    async def run(
        self,
        request: HttpRequest,
        target: RequestTarget,
        field: str,
        tensors: Tensors,
        send: SendBatch,
    ) -> Sequence[Any]:
        """Return the results of all items. Raises ApiError for the first item that is refused.

        `field`: the items' field in the request, with {} for an item's index. `tensors`: the
        inputs that `send` sends; their tokens are counted before a replica is chosen.
        """
        record = request.record
        try:
            count = await self._servers.counter.count(target.model, tensors)
            record.expected_tokens = count.tokens
            async with (
                self._admit(request, count.upper_bound) as grant,
                self._servers.router.choose(target.model, work=count.tokens) as replica,
            ):
                record.placements.append((replica.url, replica.reason))
                record.replica = replica.url
                delivery = Delivery(
                    retry_seconds=_RETRY_SECONDS,
                    timeout=self._servers.router.silence_seconds,
                    priority=grant.priority,
                )
                results = await _send_batch(request, replica.client, delivery, send)
                grant.settle(record.prompt_tokens, 0)
        except CountRefusedError as error:
            item = _ITEM.match(str(error))
            rejection = RequestRejectedError(_ITEM.sub(r"\1", str(error)), remedy="")
            raise errors.from_tritonctl_error(
                rejection, field.format(item[2] if item else 0)
            ) from error
        except ItemsRejectedError as error:
            index, first = next(iter(error.errors.items()))
            raise errors.from_tritonctl_error(first, field.format(index)) from error
        except TritonctlError as error:
            raise errors.from_tritonctl_error(error, field.partition("[")[0]) from error
        return results

    @asynccontextmanager
    async def _admit(self, request: HttpRequest, tokens: int) -> AsyncIterator[Grant]:
        """Reserve tokens. A failed request costs nothing; one that its client leaves costs all."""
        async with self._budgets.admit(request.tenant, tokens, 0) as grant:
            request.headers = grant.headers
            request.record.reserved_tokens = grant.claim.reserved
            try:
                yield grant
            except TritonctlError:
                grant.settle(0, 0)
                raise
            finally:
                request.record.refunded_tokens = grant.claim.reserved - grant.used


async def _send_batch(
    request: HttpRequest, client: AsyncTritonClient, delivery: Delivery, send: SendBatch
) -> Sequence[Any]:
    """Send the items within a span, and record their token count."""
    call = request.telemetry.start_call({})

    def set_model_version(version: str) -> None:
        request.record.model_version = call.model_version = version or None

    try:
        results = await send(
            client, replace(delivery, traceparent=call.traceparent, on_version=set_model_version)
        )
        request.record.prompt_tokens = sum(result.num_input_tokens or 0 for result in results)
        call.end_without_text(request.record.prompt_tokens)
    finally:
        call.end(0, 0, "")  # without effect if the call succeeded
    return results

# SPDX-License-Identifier: Apache-2.0
"""What the engine wants of a protocol."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from loadlib.listener import Listener
from loadlib.plan import Plan, RequestClass
from loadlib.prompts import Message
from loadlib.workload import Turn


class Transport(Protocol):
    """Sends requests of one plan."""

    async def prepare(self, tensors: Collection[str] = ()) -> None:
        """Connect; Refusal (exit 3) when nothing answers or the model is not ready.

        Refusal (exit 2) when the model does not take what the plan sends. tensors: the names in its
        prompts.
        """

    def body(self, request_class: RequestClass, turn: Turn, messages: list[Message] | None) -> Any:
        """A request as it goes out; `messages` is the conversation so far, if it is one."""

    async def exchange(self, body: Any, listener: Listener) -> str:
        """Send it, report each response; the text, if kept. WireError when it fails."""

    async def close(self) -> None:
        """Close the connections."""


def transport_of(plan: Plan) -> Transport:
    """The transport of the plan's protocol; the other one's library stays unloaded."""
    if plan.protocol == "http":
        from loadlib.http_transport import HttpTransport

        return HttpTransport(plan)
    from loadlib.grpc_transport import GrpcTransport

    return GrpcTransport(plan)

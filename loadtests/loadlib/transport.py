# SPDX-License-Identifier: Apache-2.0
"""The interface between the engine and a protocol."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from loadlib.listener import ResponseListener
from loadlib.plan_types import GeneratorPlan, PlanRequestClass
from loadlib.prompts import Message
from loadlib.workload import Turn


class Transport(Protocol):
    """Sends the requests of one plan."""

    async def prepare(self, tensors: Collection[str] = ()) -> None:
        """Connect and check that the model accepts the plan's requests.

        `tensors` are the names in the prompts. Raises RunRefusedError: exit 3 when nothing answers
        or the model is not ready, exit 2 when the plan does not fit the model.
        """

    def body(
        self, request_class: PlanRequestClass, turn: Turn, messages: list[Message] | None
    ) -> Any:
        """Build a request; `messages` is the conversation so far, if any."""

    async def exchange(self, body: Any, listener: ResponseListener) -> str:
        """Send a request, report each response and return the text, if kept. Raises WireError."""

    async def close(self) -> None:
        """Close the connections."""


def create_transport(plan: GeneratorPlan) -> Transport:
    """Create the transport of the plan's protocol and import only its library."""
    if plan.endpoint.protocol == "http":
        from loadlib.http_transport import HttpTransport

        return HttpTransport(plan)
    from loadlib.grpc_transport import GrpcTransport

    return GrpcTransport(plan)

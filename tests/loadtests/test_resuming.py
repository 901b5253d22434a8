# SPDX-License-Identifier: Apache-2.0
"""Answers whose connection breaks go on at the same endpoint, and say whose they were."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from loadlib import grpc_wire
from loadlib.clock import Clock
from loadlib.failures import WireError
from loadlib.grpc_transport import GrpcTransport
from loadlib.listener import ResponseListener
from loadlib.plan import parse_plan
from loadlib.progress import Meter
from loadlib.records import Recorder
from loadlib.refusal import RunRefusedError
from loadlib.signature import Signature
from loadlib.workload import Workload, user_of

from tests.unit.protocol.test_resuming import PROMPT_TOKENS, WORDS, Replica, serving, vanish

SIGNATURE = Signature(
    {"text_input": ("BYTES", 2), "max_tokens": ("INT32", 2), "stream": ("BOOL", 2)},
    ("text_output", "num_input_tokens", "num_output_tokens", "finish_reason", "output_ids"),
)


class Kept:
    """Records, in memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """As a file's."""
        self.lines.append(line)


def answered(plan: dict[str, Any], replica: Replica) -> tuple[dict[str, Any], str]:
    """The record of the plan's first request, and its text. Raises WireError."""

    async def run(url: str) -> tuple[dict[str, Any], str]:
        parsed = parse_plan(plan | {"endpoint": {"protocol": "grpc", "url": url}})
        transport = GrpcTransport(parsed)
        transport._bodies = grpc_wire.GrpcBodies(parsed, SIGNATURE)
        request = Workload(parsed).planned_requests()[0]
        kept, clock = Kept(), Clock(0)
        recorder = Recorder(kept, Meter(0, None), worker=0, text=True)
        flight = recorder.record_sent(request, 0, 0, 0)
        if parsed.users is not None:
            flight.user = user_of(parsed.users, parsed.seed, request.index)
        listener = ResponseListener(flight, request.turns[0], recorder, clock, keeps_text=True)
        body = transport.body(request.request_class, request.turns[0], None)
        try:
            text = await transport.exchange(body, listener)
        finally:
            await transport.close()
        return json.loads(kept.lines[0]), text

    with serving(replica) as (url,):
        return asyncio.run(run(url))


def test_a_broken_answer_goes_on(plan: dict[str, Any]) -> None:
    """As often as it breaks: no token twice, none missing, the prompt's tokens as before."""
    replica = Replica(2, vanish, version="7")
    record, text = answered(plan | {"resumes": 2}, replica)
    assert text == "".join(WORDS)
    assert (record["outcome"], record["out"], record["in"]) == ("ok", len(WORDS), PROMPT_TOKENS)
    assert (record["resumes"], record["version"]) == (2, "7")
    told = [dict(request.parameters) for request in replica.requests]
    assert ["resume_text_sha256" in parameters for parameters in told] == [False, True, True]


def test_and_no_more_often(plan: dict[str, Any]) -> None:
    """Then it has failed, as without permission to go on."""
    for resumes, asked in ((1, 2), (0, 1)):
        replica = Replica(2, vanish)
        with pytest.raises(WireError, match="Socket closed"):
            answered(plan | {"resumes": resumes}, replica)
        assert len(replica.requests) == asked


def test_each_request_is_one_user_s(plan: dict[str, Any]) -> None:
    """Told in the header, and in the record; equal seeds, equal users."""
    seen: list[dict[str, str]] = []

    class Listening(Replica):
        def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802
            seen.append(dict(context.invocation_metadata()))
            return super().ModelStreamInfer(requests, context)

    asked = plan | {"users": {"header": "x-user-id", "count": 50}}
    record, _ = answered(asked, Listening())
    assert seen[0]["x-user-id"] == record["user"]
    users = parse_plan(asked).users
    assert users is not None
    drawn = [user_of(users, 1, index) for index in range(2000)]
    assert drawn == [user_of(users, 1, index) for index in range(2000)]
    assert len(set(drawn)) == 50
    assert "user" not in answered(plan, Replica())[0]


def test_tensors_are_not_continued(plan: dict[str, Any]) -> None:
    """Nor is anything over HTTP: the plan is refused."""
    for change in ({"kind": "tensors"}, {"endpoint": plan["endpoint"] | {"protocol": "http"}}):
        changed = plan | change | {"resumes": 1}
        if change.get("kind"):
            del changed["classes"][0]["max_tokens"]
        with pytest.raises(RunRefusedError, match="resumes"):
            parse_plan(changed)
        changed["classes"][0]["max_tokens"] = 4

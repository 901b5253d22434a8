# SPDX-License-Identifier: Apache-2.0
"""Triton's HTTP endpoints over aiohttp, one connection per request in flight."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection
from typing import Any

import aiohttp

from loadlib import http_wire
from loadlib.api_key import key_headers
from loadlib.failures import CONNECTION, TIMEOUT, Failure, WireError
from loadlib.listener import ResponseListener
from loadlib.plan_types import GeneratorPlan, PlanRequestClass
from loadlib.prompts import Message
from loadlib.signature import Signature, check_inputs, http_refusal, unreachable_refusal
from loadlib.workload import Turn

_PROBE = aiohttp.ClientTimeout(total=5.0)
_OK = 200


class HttpTransport:
    """Sends a plan's requests over HTTP."""

    def __init__(self, plan: GeneratorPlan) -> None:
        _allow_many_sockets()
        self._plan = plan
        self._timeout = aiohttp.ClientTimeout(total=plan.timeout_seconds)
        self._session = aiohttp.ClientSession(
            f"http://{plan.endpoint.url}",
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Content-Type": "application/json"} | key_headers(plan.endpoint.api_key_file),
            auto_decompress=False,
        )
        self._bodies: http_wire.HttpBodies | None = None
        self._paths = {
            request_class.name: http_wire.path(plan, request_class)
            for request_class in plan.classes
        }

    async def prepare(self, tensors: Collection[str] = ()) -> None:
        """Check the endpoint and read the model's signature.

        Raises RunRefusedError (exit 3) when the endpoint does not answer or the model is not ready.
        """
        try:
            signature = await self._signature()
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            raise unreachable_refusal(self._plan, f"{type(error).__name__}: {error}") from error
        check_inputs(self._plan, signature, tensors)
        self._bodies = http_wire.HttpBodies(self._plan, signature)

    async def _signature(self) -> Signature:
        model = f"/v2/models/{self._plan.model}"
        signature = Signature.of_json(json.loads(await self._get(model)))
        await self._get(f"{model}/ready")
        return signature

    async def _get(self, path: str) -> str:
        # A redirect would leave the server under test and leak the key.
        async with self._session.get(path, timeout=_PROBE, allow_redirects=False) as answer:
            text: str = await answer.text()
            if answer.status != _OK:
                raise http_refusal(self._plan, answer.status, text)
            return text

    def body(
        self, request_class: PlanRequestClass, turn: Turn, messages: list[Message] | None
    ) -> tuple[str, bytes]:
        """Return the path and content of a request."""
        assert self._bodies is not None, "prepare() was not called"  # noqa: S101
        content = self._bodies.body(request_class, turn, messages)
        return self._paths[request_class.name], content

    async def exchange(self, body: tuple[str, bytes], listener: ResponseListener) -> str:
        """Send a request, report each response and return the text, if kept. Raises WireError."""
        path, content = body
        users = self._plan.users
        user = {users.header: listener.user} if users and listener.user is not None else None
        try:
            async with self._session.post(
                path, data=content, headers=user, timeout=self._timeout, allow_redirects=False
            ) as answer:
                if failure := http_wire.http_failure(answer.status, b""):
                    raise WireError(failure._replace(message=await _message(answer)))
                return await self._read(answer, listener)
        except TimeoutError as error:
            raise WireError(Failure(TIMEOUT, "no complete response in time")) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise WireError(Failure(CONNECTION, f"{type(error).__name__}: {error}")) from error

    async def _read(self, answer: Any, listener: ResponseListener) -> str:
        if self._plan.kind == "tensors":
            listener.set_version(http_wire.response_version(await answer.read()))
            listener.on_response(0, None, final=True)
            return ""
        reader = http_wire.EventReader(listener.keeps_text)
        if answer.content_type != "text/event-stream":
            tokens = reader.event(await answer.read())
            listener.set_version(reader.version)
            listener.set_uncounted(reader.uncounted)
            listener.on_response(tokens, reader.input_tokens, final=True)
            return reader.text
        async for content in answer.content.iter_any():
            for tokens in reader.feed(content):
                listener.set_version(reader.version)
                listener.set_uncounted(reader.uncounted)
                if listener.on_response(tokens, reader.input_tokens, final=False):
                    answer.close()
                    return reader.text
        listener.on_response(0, reader.input_tokens, final=True)
        return reader.text

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
        # aiohttp closes sockets in a later event-loop iteration.
        await asyncio.sleep(0)


def _allow_many_sockets() -> None:
    """Raise the soft limit to the hard one: 1,024 sockets, one per request, are too few."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


async def _message(answer: Any) -> str:
    failure = http_wire.http_failure(answer.status, await answer.read())
    return failure.message if failure else ""

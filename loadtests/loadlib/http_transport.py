# SPDX-License-Identifier: Apache-2.0
"""Triton's HTTP endpoints over aiohttp, one connection for each request in flight."""

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
from loadlib.listener import Listener
from loadlib.plan import Plan, RequestClass
from loadlib.prompts import Message
from loadlib.signature import Signature, check_inputs, not_answered, unreachable
from loadlib.workload import Turn

_PROBE = aiohttp.ClientTimeout(total=5.0)
_OK = 200


class HttpTransport:
    """The requests of a plan."""

    def __init__(self, plan: Plan) -> None:
        _allow_many_sockets()
        self._plan = plan
        self._timeout = aiohttp.ClientTimeout(total=plan.timeout_seconds)
        self._session = aiohttp.ClientSession(
            f"http://{plan.url}",
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Content-Type": "application/json"} | key_headers(plan.api_key_file),
            auto_decompress=False,
        )
        self._bodies: http_wire.Bodies | None = None
        self._paths = {one.name: http_wire.path(plan, one) for one in plan.classes}

    async def prepare(self, tensors: Collection[str] = ()) -> None:
        """Refusal (exit 3) when the endpoint does not answer or the model is not ready."""
        try:
            signature = await self._signature()
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            raise unreachable(self._plan, f"{type(error).__name__}: {error}") from error
        check_inputs(self._plan, signature, tensors)
        self._bodies = http_wire.Bodies(self._plan, signature)

    async def _signature(self) -> Signature:
        model = f"/v2/models/{self._plan.model}"
        signature = Signature.of_json(json.loads(await self._get(model)))
        await self._get(f"{model}/ready")
        return signature

    async def _get(self, path: str) -> str:
        # A redirect leads away from the server under test, and would take the key along.
        async with self._session.get(path, timeout=_PROBE, allow_redirects=False) as answer:
            text: str = await answer.text()
            if answer.status != _OK:
                raise not_answered(self._plan, answer.status, text)
            return text

    def body(
        self, request_class: RequestClass, turn: Turn, messages: list[Message] | None
    ) -> tuple[str, bytes]:
        """Where a request goes, and what."""
        assert self._bodies is not None, "prepare() was not called"  # noqa: S101
        content = self._bodies.body(request_class, turn, messages)
        return self._paths[request_class.name], content

    async def exchange(self, body: tuple[str, bytes], listener: Listener) -> str:
        """Send it, report each response; the text, if kept. WireError when it fails."""
        path, content = body
        users = self._plan.users
        user = {users.header: listener.user} if users and listener.user is not None else None
        try:
            async with self._session.post(
                path, data=content, headers=user, timeout=self._timeout, allow_redirects=False
            ) as answer:
                if failure := http_wire.refusal(answer.status, b""):
                    raise WireError(failure._replace(message=await _message(answer)))
                return await self._read(answer, listener)
        except TimeoutError as error:
            raise WireError(Failure(TIMEOUT, "no whole answer in time")) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise WireError(Failure(CONNECTION, f"{type(error).__name__}: {error}")) from error

    async def _read(self, answer: Any, listener: Listener) -> str:
        if self._plan.kind == "tensors":
            listener.served_by(http_wire.version(await answer.read()))
            listener.responded(0, None, final=True)
            return ""
        reader = http_wire.EventReader(listener.keeps_text)
        if answer.content_type != "text/event-stream":
            tokens = reader.event(await answer.read())
            listener.served_by(reader.version)
            listener.responded(tokens, reader.input_tokens, final=True)
            return reader.text
        async for content in answer.content.iter_any():
            for tokens in reader.feed(content):
                listener.served_by(reader.version)
                if listener.responded(tokens, reader.input_tokens, final=False):
                    answer.close()
                    return reader.text
        listener.responded(0, reader.input_tokens, final=True)
        return reader.text

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
        # aiohttp closes sockets a moment later.
        await asyncio.sleep(0)


def _allow_many_sockets() -> None:
    """Raise the limit as far as allowed: each request in flight has one, 1,024 is too few."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _message(answer: Any) -> str:
    failure = http_wire.refusal(answer.status, await answer.read())
    return failure.message if failure else ""

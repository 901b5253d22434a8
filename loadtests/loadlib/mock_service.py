# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint's gRPC service: Triton's responses at the drawn times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from loadlib import mock_wire
from loadlib.mock_behaviour import Behaviour, DrawnWork
from loadlib.mock_servers import MockQueueFullError, MockServers, MockStalls, QueueSlot
from loadlib.mock_truth import RequestHistory, TruthFile

_SERVICE = "inference.GRPCInferenceService"
_READING_SECONDS = 0.002
_FULL = "Exceeds maximum queue size"
_FAILED = "the mock endpoint fails this request on purpose"


class MockEndpoint:
    """Serves a text model (streams) and an identity model (unary)."""

    def __init__(self, models: tuple[str, str], behaviour: Behaviour, truth: TruthFile) -> None:
        self._models = dict(zip(models, (True, False), strict=True))  # name → is it the text model
        self._behaviour = behaviour
        self._truth = truth
        self._stalls = MockStalls(behaviour.stalls)
        self._servers = MockServers(behaviour.servers, behaviour.queue_size, behaviour.batching)
        self._count = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service for `add_generic_rpc_handlers`."""
        unary = {
            "ServerLive": (service_pb2.ServerLiveRequest, self._live),
            "ServerReady": (service_pb2.ServerReadyRequest, self._ready),
            "ModelReady": (service_pb2.ModelReadyRequest, self._model_ready),
            "ServerMetadata": (service_pb2.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": (service_pb2.ModelMetadataRequest, self._metadata),
            "ModelConfig": (service_pb2.ModelConfigRequest, self._config),
            "RepositoryIndex": (service_pb2.RepositoryIndexRequest, self._index),
        }
        methods = {name: _unary(*method) for name, method in unary.items()}
        # No serialiser: mock_wire returns bytes.
        methods["ModelInfer"] = grpc.unary_unary_rpc_method_handler(
            self._infer, service_pb2.ModelInferRequest.FromString
        )
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, service_pb2.ModelInferRequest.FromString
        )
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def _live(self, _request: Any, _context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def _ready(self, _request: Any, _context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=True)

    async def _model_ready(self, request: Any, _context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name in self._models)

    async def _server_metadata(self, _request: Any, _context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="tritonctl-mock", version="1")

    async def _metadata(self, request: Any, context: Any) -> Any:
        await self._check_model(request.name, context)
        return mock_wire.metadata(request.name, self._models[request.name])

    async def _config(self, request: Any, context: Any) -> Any:
        await self._check_model(request.name, context)
        batching = self._behaviour.batching
        text = self._models[request.name]
        return mock_wire.config(
            request.name, text, 1 if text or not batching else batching.max_size
        )

    async def _index(self, _request: Any, _context: Any) -> Any:
        return mock_wire.index(self._models)

    async def _check_model(self, model: str, context: Any) -> None:
        if model not in self._models:
            await context.abort(grpc.StatusCode.NOT_FOUND, _unknown_model(model))

    async def _infer(self, request: Any, context: Any) -> bytes:
        await self._check_model(request.model_name, context)
        story = self._story(request, "unary", asyncio.get_running_loop().time())
        drawn = self._behaviour.draw_unary(story.index)
        place = await self._enter(story, batchable=True)
        if place is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _FULL)
            return b""
        if batching := self._behaviour.batching:
            drawn = DrawnWork((batching.seconds(place.size),), (), drawn.error)
        await self._work(story, place, drawn, lambda _: _do_nothing())
        if drawn.error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _FAILED)
        return mock_wire.unary_response(request)

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Serve a stream, which many requests may share, as with perf_analyzer.

        If the first request arrives within 2 ms of the call, its latency starts at the call,
        because gRPC's poller delays the read.
        """
        lock = asyncio.Lock()
        loop = asyncio.get_running_loop()
        opened: float = loop.time()

        async def write(response: bytes) -> None:
            async with lock:
                await context.write(response)

        async with asyncio.TaskGroup() as answers:
            async for request in requests:
                now = loop.time()
                arrival = opened if now - opened < _READING_SECONDS else now
                opened = 0.0
                answers.create_task(self._answer(request, arrival, write))

    async def _answer(self, request: Any, arrival: float, write: Callable[[bytes], Any]) -> None:
        if request.model_name not in self._models:
            await write(mock_wire.stream_error(request, _unknown_model(request.model_name)))
            return
        story = self._story(request, "stream", arrival)
        limit, stream, words = mock_wire.stream_inputs(request)
        drawn = self._behaviour.draw_stream(story.index, limit, all_at_once=not stream)
        place = await self._enter(story, batchable=False)
        if place is None:
            await write(mock_wire.stream_error(request, _FULL))
            return
        is_cut = sum(drawn.tokens) == limit
        so_far = 0

        async def send(step: int) -> None:
            nonlocal so_far
            step_tokens = drawn.tokens[step]
            so_far += step_tokens
            last = step == len(drawn.tokens) - 1
            if last and drawn.error:
                await write(mock_wire.stream_error(request, _FAILED))
            else:
                await write(
                    mock_wire.stream_response(request, words, (step_tokens, so_far), last, is_cut)
                )

        await self._work(story, place, drawn, send)

    def _story(self, request: Any, kind: str, arrival: float) -> RequestHistory:
        self._stalls.set_origin(arrival)
        story = RequestHistory(self._count, request.id, kind, arrival)
        self._count += 1
        return story

    async def _enter(self, story: RequestHistory, *, batchable: bool) -> QueueSlot | None:
        """Wait for a server; None if the queue is full."""
        try:
            return await self._servers.enter(story.arrival, batchable)
        except MockQueueFullError:
            story.outcome = "refused"
            self._truth.write(story)
            return None
        except asyncio.CancelledError:
            self._truth.write(story)
            raise

    async def _work(
        self, story: RequestHistory, place: QueueSlot, drawn: DrawnWork, send: Callable[[int], Any]
    ) -> None:
        """Hold the server for the drawn time and send each response when it is due."""
        loop = asyncio.get_running_loop()
        story.start = due = place.start
        story.tokens = list(drawn.tokens)
        try:
            for step, work in enumerate(drawn.steps):
                due = self._stalls.end_time(due, work)
                story.due.append(due)
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                story.at.append(loop.time())
                if step == len(drawn.steps) - 1:
                    # A client may leave once it has the response, before `send` returns.
                    story.outcome = "error" if drawn.error else "ok"
                await send(step)
        except asyncio.CancelledError:
            due = loop.time()
            raise
        finally:
            self._servers.leave(place, due)
            self._truth.write(story)


async def _do_nothing() -> None:
    pass


def _unknown_model(model: str) -> str:
    return f"Request for unknown model: '{model}' is not found"


def _unary(request: Any, answer: Callable[..., Any]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(
        answer, request.FromString, lambda message: bytes(message.SerializeToString())
    )

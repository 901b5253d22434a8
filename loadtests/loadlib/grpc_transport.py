# SPDX-License-Identifier: Apache-2.0
"""Triton over grpc.aio: bytes in, bytes out, without generated stubs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from loadlib import grpc_wire
from loadlib.api_key import key_headers
from loadlib.failures import BrokenError, Failure, WireError, rpc_error
from loadlib.listener import ResponseListener
from loadlib.plan_types import GeneratorPlan, PlanRequestClass
from loadlib.prompts import Message
from loadlib.signature import Signature, check_inputs, grpc_refusal, unknown_model_refusal
from loadlib.tls import create_channel
from loadlib.workload import Turn

_PROBE_SECONDS = 5.0
_END_SECONDS = 1.0
# Seconds before a broken stream resumes; doubled while no tokens arrive.
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 1.0
_UNFINISHED = Failure("INTERNAL", "the stream ended before its final response")


class GrpcTransport:
    """Sends a plan's requests over one connection; two or four were not faster."""

    def __init__(self, plan: GeneratorPlan) -> None:
        self._plan = plan
        self._metadata = tuple(key_headers(plan.endpoint.api_key_file).items()) or None
        self._channel = create_channel(
            plan.endpoint.url, plan.endpoint.tls, grpc_wire.CHANNEL_OPTIONS
        )
        path = grpc_wire.STREAM if plan.kind == "text" else grpc_wire.INFER
        # One request per stream: on the wire the bidirectional call, half-closed at once.
        text = plan.kind == "text"
        self._call = self._channel.unary_stream(path) if text else self._channel.unary_unary(path)
        self._bodies: grpc_wire.GrpcBodies | None = None

    async def prepare(self, tensors: Collection[str] = ()) -> None:
        """Check the endpoint and read the model's signature.

        Raises RunRefusedError (exit 3) when the endpoint does not answer or the model is not ready.
        """
        try:
            signature = await self._signature()
        except grpc.RpcError as error:
            raise grpc_refusal(self._plan, error) from error
        check_inputs(self._plan, signature, tensors)
        self._bodies = grpc_wire.GrpcBodies(self._plan, signature)

    async def _signature(self) -> Signature:
        model = self._plan.model
        ready = self._channel.unary_unary(
            grpc_wire.READY,
            service_pb2.ModelReadyRequest.SerializeToString,
            service_pb2.ModelReadyResponse.FromString,
        )
        metadata = self._channel.unary_unary(
            grpc_wire.METADATA,
            service_pb2.ModelMetadataRequest.SerializeToString,
            service_pb2.ModelMetadataResponse.FromString,
        )
        request = service_pb2.ModelReadyRequest(name=model)
        call = {"timeout": _PROBE_SECONDS, "metadata": self._metadata}
        if not (await ready(request, **call)).ready:
            raise unknown_model_refusal(self._plan, "it is not ready")
        return Signature.of(await metadata(service_pb2.ModelMetadataRequest(name=model), **call))

    def body(
        self, request_class: PlanRequestClass, turn: Turn, messages: list[Message] | None
    ) -> bytes:
        """Return the serialised request."""
        assert self._bodies is not None, "prepare() was not called"  # noqa: S101
        return self._bodies.body(request_class, turn, messages)

    async def exchange(self, body: bytes, listener: ResponseListener) -> str:
        """Send a request, report each response and return the text, if kept. Raises WireError."""
        if self._plan.kind == "text":
            return await self._text(body, listener)
        try:
            answer = await self._start(body, listener, self._plan.timeout_seconds)
        except grpc.RpcError as error:
            raise rpc_error(error) from error
        listener.set_version(grpc_wire.response_version(answer))
        listener.on_response(0, None, final=True)
        return ""

    def _start(self, body: bytes, listener: ResponseListener, seconds: float) -> Any:
        metadata = self._metadata
        if listener.user is not None and self._plan.users is not None:
            metadata = (*(metadata or ()), (self._plan.users.header, listener.user))
        return self._call(body, timeout=seconds, metadata=metadata)

    async def _text(self, body: bytes, listener: ResponseListener) -> str:
        """Read a stream, resuming it up to `resumes` times when it breaks."""
        reader = grpc_wire.StreamReader(listener.keeps_text, self._plan.resumes > 0)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._plan.timeout_seconds
        fruitless = 0
        for remaining_resumes in range(self._plan.resumes, -1, -1):
            previous_tokens = reader.output_tokens
            try:
                call = self._start(
                    body + reader.resume_part(), listener, max(0.0, deadline - loop.time())
                )
                return await self._read_stream_text(call, listener, reader)
            except BrokenError:
                if reader.complete:  # only the empty final response is missing
                    listener.on_response(0, reader.input_tokens, final=True)
                    return reader.text
                if not remaining_resumes:
                    raise
                listener.count_resume()
                fruitless = 0 if reader.output_tokens > previous_tokens else fruitless + 1
                await asyncio.sleep(min(_FIRST_PAUSE * 2.0**fruitless, _MAX_PAUSE))
        raise AssertionError("the last attempt returns or raises")

    async def _read_stream_text(
        self, stream: Any, listener: ResponseListener, reader: grpc_wire.StreamReader
    ) -> str:
        try:
            while (content := await stream.read()) is not grpc.aio.EOF:
                tokens = reader.feed(content)
                listener.set_version(reader.version)
                listener.set_uncounted(reader.uncounted)
                if listener.on_response(tokens, reader.input_tokens, final=reader.final):
                    break
        except WireError:
            # Triton is about to end the call: a cancel now makes 2.51 leak it.
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await stream.code()
            raise
        except grpc.RpcError as error:
            raise rpc_error(error) from error
        finally:
            stream.cancel()  # no effect on a finished stream
        if not reader.final and not listener.stopped:
            raise BrokenError(_UNFINISHED)
        return reader.text

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

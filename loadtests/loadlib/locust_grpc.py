# SPDX-License-Identifier: Apache-2.0
"""Triton over gRPC's synchronous stack under gevent: bytes in, bytes out.

`grpc.experimental.gevent.init_gevent()` has been called before any channel is made. One call per
request: tritonclient's own stream helper hangs under gevent at the end of a run.
"""

from __future__ import annotations

import grpc
from tritonclient.grpc import service_pb2

from loadlib import grpc_wire
from loadlib.api_key import key_metadata
from loadlib.failures import Failure, WireError, rpc_failure
from loadlib.listener import Listener
from loadlib.plan import Plan, RequestClass
from loadlib.prompts import Message
from loadlib.signature import Signature, check_inputs, unknown_model, unusable
from loadlib.tls import channel
from loadlib.workload import Turn

_PROBE_SECONDS = 5.0
_UNFINISHED = Failure("INTERNAL", "the stream ended before its final response")


class GrpcTransport:
    """The requests of a plan over one connection."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        options = [*grpc_wire.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        self._metadata = key_metadata(plan.api_key_file)
        self._channel = channel(plan.url, plan.tls, options)
        # One request a stream: on the wire this is the bidirectional call, half closed at once.
        self._stream_call = self._channel.unary_stream(grpc_wire.STREAM)
        self._infer_call = self._channel.unary_unary(grpc_wire.INFER)
        self._bodies: grpc_wire.Bodies | None = None

    def prepare(self) -> None:
        """Refusal (exit 3) when the endpoint does not answer or the model is not ready."""
        try:
            signature = self._signature()
        except grpc.RpcError as error:
            raise unusable(self._plan, error) from error
        check_inputs(self._plan, signature)
        self._bodies = grpc_wire.Bodies(self._plan, signature)

    def _signature(self) -> Signature:
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
        known = {"timeout": _PROBE_SECONDS, "metadata": self._metadata}
        if not ready(service_pb2.ModelReadyRequest(name=model), **known).ready:
            raise unknown_model(self._plan, "it is not ready")
        told = metadata(service_pb2.ModelMetadataRequest(name=model), **known)
        return Signature.of(told)

    def body(
        self, request_class: RequestClass, turn: Turn, messages: list[Message] | None
    ) -> bytes:
        """A request as it goes out."""
        assert self._bodies is not None, "prepare() was not called"  # noqa: S101
        return self._bodies.body(request_class, turn, messages)

    def exchange(self, body: bytes, heard: Listener) -> str:
        """Send a request and tell `heard` of each response; the text, if kept. WireError."""
        try:
            if self._plan.kind == "tensors":
                self._infer_call(body, timeout=self._plan.timeout_seconds, metadata=self._metadata)
                heard.responded(0, None, final=True)
                return ""
            return self._stream(body, heard)
        except grpc.RpcError as error:
            raise WireError(rpc_failure(error)) from error
        except ValueError as error:  # how a closed channel refuses
            raise WireError(Failure("CANCELLED", str(error))) from error

    def _stream(self, body: bytes, heard: Listener) -> str:
        call = self._stream_call(body, timeout=self._plan.timeout_seconds, metadata=self._metadata)
        heard.cancel = call.cancel
        reader = grpc_wire.StreamReader(heard.keeps_text)
        try:
            for content in call:
                tokens = reader.feed(content)
                if heard.responded(tokens, reader.input_tokens, final=reader.final):
                    break
        finally:
            call.cancel()  # without effect on a finished stream
        if not reader.final and not heard.stopped:
            raise WireError(_UNFINISHED)
        return reader.text

    def close(self) -> None:
        """Close the connection; what is under way fails as cancelled."""
        self._channel.close()

# SPDX-License-Identifier: Apache-2.0
"""Requests to a server, with everything that comes back: errors, finals, what follows a final.

Unlike `TritonClient`, which gives a user the answer, this keeps what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import ServerError, TritonctlError
from tritonctl.protocol.channel import Endpoint, connection_remedy, refused_key
from tritonctl.protocol.server_description import printable

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_FINAL = "triton_final_response"
_NS_PER_MS = 1e6


@dataclass
class Answer:
    """All responses of one request, the empty final one left out. `error`: Triton's words, or "".

    `late`: responses that came behind the first final one. `empty`: those without an output that
    were not final. `timed_out`: the call had not ended.
    """

    responses: list[Any] = field(default_factory=list)
    finals: int = 0
    late: int = 0
    empty: int = 0
    error: str = ""
    timed_out: bool = False


@dataclass(frozen=True)
class Statistics:
    """What Triton has counted of a model, over its versions; times in ms, of all requests."""

    inferences: int = 0
    executions: int = 0
    requests: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0

    def since(self, before: Statistics) -> Statistics:
        """The difference."""
        return Statistics(
            self.inferences - before.inferences,
            self.executions - before.executions,
            self.requests - before.requests,
            self.queue_ms - before.queue_ms,
            self.compute_ms - before.compute_ms,
        )


class Asker:
    """A connection; close it when done, which ends whatever is under way."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self.url = endpoint.url
        self.seconds = seconds
        self._metadata = endpoint.admin_metadata
        self._open = endpoint.metadata
        self._channel = endpoint.channel(_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def models(self) -> dict[str, str] | None:
        """Every model with "" or the reason why it is not ready; None where that takes a token.

        Raises ServerError when the server cannot be reached.
        """
        self._call("ServerLive", service_pb2.ServerLiveRequest())
        try:
            index = self._stub.RepositoryIndex(
                service_pb2.RepositoryIndexRequest(), timeout=self.seconds, metadata=self._metadata
            )
        except grpc.RpcError:
            return None
        found: dict[str, str] = {}
        for one in index.models:
            if one.state == "READY" or found.get(one.name) == "":
                found[one.name] = ""
            elif one.state and one.reason != "unloaded":
                reason = f"{one.state}: {one.reason}" if one.reason else one.state
                found[one.name] = printable(reason)
        return found

    def config(self, model: str) -> dict[str, Any]:
        """A model's configuration. Raises ServerError."""
        answer = self._call("ModelConfig", service_pb2.ModelConfigRequest(name=model))
        found: dict[str, Any] = MessageToDict(answer.config, preserving_proto_field_name=True)
        return found

    def counts(self, model: str) -> bool:
        """Whether the server tells its statistics."""
        request = service_pb2.ModelStatisticsRequest(name=model)
        try:
            self._stub.ModelStatistics(request, timeout=self.seconds, metadata=self._open)
        except grpc.RpcError:
            return False
        return True

    def statistics(self, model: str) -> Statistics:
        """What the server has counted so far. Raises ServerError."""
        answer = self._call("ModelStatistics", service_pb2.ModelStatisticsRequest(name=model))
        several = answer.model_stats
        parts = [one.inference_stats for one in several]
        return Statistics(
            inferences=sum(one.inference_count for one in several),
            executions=sum(one.execution_count for one in several),
            requests=sum(part.queue.count for part in parts),
            queue_ms=sum(part.queue.ns for part in parts) / _NS_PER_MS,
            compute_ms=sum(
                part.compute_input.ns + part.compute_infer.ns + part.compute_output.ns
                for part in parts
            )
            / _NS_PER_MS,
        )

    def _call(self, name: str, request: Any) -> Any:
        try:
            return getattr(self._stub, name)(request, timeout=self.seconds, metadata=self._open)
        except grpc.RpcError as error:
            raise _failed(error, self.url) from error

    def ask(self, *requests: Any, stream: bool) -> list[Answer]:
        """The answers to requests that are sent at once."""
        start = self._start_stream if stream else self._start_single
        read = _read_stream if stream else _read_single
        calls = [start(request) for request in requests]
        try:
            return [read(call) for call in calls]
        finally:
            for call in calls:
                call.cancel()  # without effect on one that has ended

    def _start_single(self, request: Any) -> Any:
        return self._stub.ModelInfer.future(request, timeout=self.seconds, metadata=self._open)

    def _start_stream(self, request: Any) -> Any:
        return self._stub.ModelStreamInfer(
            iter([request]), timeout=self.seconds, metadata=self._open
        )

    def leave_early(self, request: Any, streams: int = 1) -> Answer:
        """Read the first responses of streams of a request, then leave them as `TritonClient` does.

        What came of all of them, up to the first error.
        """
        calls, answer = [self._start_stream(request) for _ in range(streams)], Answer()
        try:
            for call in calls:
                for message in call:
                    _note(answer, message)
                    break
        except grpc.RpcError as error:
            _note_error(answer, error)
        finally:
            for call in calls:
                call.cancel()
        return answer


def _read_single(call: Any) -> Answer:
    answer = Answer()
    try:
        answer.responses.append(call.result())
        answer.finals = 1
    except grpc.RpcError as error:
        _note_error(answer, error)
    return answer


def _read_stream(call: Any) -> Answer:
    """To the very end of the call: what follows a final response would be a mistake."""
    answer = Answer()
    try:
        for message in call:
            _note(answer, message)
    except grpc.RpcError as error:
        _note_error(answer, error)
    return answer


def _note(answer: Answer, message: Any) -> None:
    response = message.infer_response
    answer.late += answer.finals > 0
    final = bool(response.parameters[_FINAL].bool_param)
    answer.finals += final
    answer.error = answer.error or printable(message.error_message)
    if response.outputs:
        answer.responses.append(response)
    elif not final and not message.error_message:
        answer.empty += 1


def _note_error(answer: Answer, error: Any) -> None:
    answer.timed_out = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    answer.error = answer.error or printable(error.details() or error.code().name)


def _failed(error: Any, url: str) -> TritonctlError:
    detail = error.details() or ""
    return refused_key(error, url) or ServerError(
        f"no answer from Triton at {url}: {error.code().name}: {detail}",
        remedy=connection_remedy(detail)
        or "give host:port of Triton's gRPC endpoint (8001 unless set otherwise), and check that "
        "it runs: `tritonctl status` knows the project's server",
    )

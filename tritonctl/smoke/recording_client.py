# SPDX-License-Identifier: Apache-2.0
"""A client that records all responses: errors, final ones, and those after a final one.

`TritonClient` returns the answer; this client shows its problems.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

from tritonctl.errors import TritonctlError
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.error_map import NAMED_SERVER
from tritonctl.protocol.server_description import printable

_FINAL = "triton_final_response"
_NS_PER_MS = 1e6


@dataclass
class RecordedAnswer:
    """The recorded answer to one request."""

    responses: list[Any] = field(default_factory=list)  # without the empty final one
    finals: int = 0  # final responses
    late: int = 0  # responses after the first final one
    empty: int = 0  # responses without output that were not final
    error: str = ""  # Triton's message
    timed_out: bool = False  # the call did not finish in time


@dataclass(frozen=True)
class Statistics:
    """Triton's counters of a model over all its versions; times in ms, summed over requests."""

    inferences: int = 0
    executions: int = 0
    requests: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0

    def since(self, baseline: Statistics) -> Statistics:
        """Return the difference to an earlier `baseline`."""
        pairs = zip(astuple(self), astuple(baseline), strict=True)
        return Statistics(*(now - earlier for now, earlier in pairs))


class RecordingClient:
    """A client that records all responses; closing it cancels open calls."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self.url = endpoint.url
        self.seconds = seconds
        self._connection = Connection(endpoint, NAMED_SERVER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def models(self) -> dict[str, str] | None:
        """Return every model with the reason why it is not ready, or ""; None without permission.

        Raises ServerError if the server is unreachable.
        """
        self._call(service_pb2.ServerLiveRequest())
        try:
            index = self._call(service_pb2.RepositoryIndexRequest(), admin=True)
        except TritonctlError:
            return None
        states: dict[str, str] = {}
        for version in index.models:
            if version.state == "READY" or states.get(version.name) == "":
                states[version.name] = ""
            elif version.state and version.reason != "unloaded":
                reason = f"{version.state}: {version.reason}" if version.reason else version.state
                states[version.name] = printable(reason)
        return states

    def config(self, model: str) -> dict[str, Any]:
        """Return a model's configuration. Raises TritonctlError."""
        answer = self._call(service_pb2.ModelConfigRequest(name=model))
        config: dict[str, Any] = MessageToDict(answer.config, preserving_proto_field_name=True)
        return config

    def has_statistics(self, model: str) -> bool:
        """Whether the server returns its statistics without a token."""
        try:
            self._call(service_pb2.ModelStatisticsRequest(name=model))
        except TritonctlError:
            return False
        return True

    def statistics(self, model: str) -> Statistics:
        """Return the server's statistics of a model. Raises TritonctlError."""
        versions = self._call(service_pb2.ModelStatisticsRequest(name=model)).model_stats
        times = [version.inference_stats for version in versions]
        return Statistics(
            inferences=sum(version.inference_count for version in versions),
            executions=sum(version.execution_count for version in versions),
            requests=sum(each.queue.count for each in times),
            queue_ms=sum(each.queue.ns for each in times) / _NS_PER_MS,
            compute_ms=sum(
                each.compute_input.ns + each.compute_infer.ns + each.compute_output.ns
                for each in times
            )
            / _NS_PER_MS,
        )

    def _call(self, request: Any, *, admin: bool = False) -> Any:
        return self._connection.ask(request, seconds=self.seconds, admin=admin)

    def send_all(self, *requests: Any, stream: bool) -> list[RecordedAnswer]:
        """Send requests concurrently and return their answers."""
        start = self._connection.stream if stream else self._connection.start
        read = _read_stream if stream else _read_single
        calls = [start(request, seconds=self.seconds) for request in requests]
        try:
            return [read(call) for call in calls]
        finally:
            for call in calls:
                call.cancel()  # no effect on finished calls

    def cancel_early(self, request: Any, streams: int = 1) -> RecordedAnswer:
        """Read the first response of each stream, then cancel, as `TritonClient` does.

        The answer records the responses of all streams, up to the first error.
        """
        answer = RecordedAnswer()
        calls = [self._connection.stream(request, seconds=self.seconds) for _ in range(streams)]
        try:
            for call in calls:
                for message in call:
                    _record_message(answer, message)
                    break
        except grpc.RpcError as error:
            _record_error(answer, error)
        finally:
            for call in calls:
                call.cancel()
        return answer


def _read_single(call: Any) -> RecordedAnswer:
    answer = RecordedAnswer()
    try:
        answer.responses.append(call.result())
        answer.finals = 1
    except grpc.RpcError as error:
        _record_error(answer, error)
    return answer


def _read_stream(call: Any) -> RecordedAnswer:
    """Read the call to its end, to detect responses after a final one."""
    answer = RecordedAnswer()
    try:
        for message in call:
            _record_message(answer, message)
    except grpc.RpcError as error:
        _record_error(answer, error)
    return answer


def _record_message(answer: RecordedAnswer, message: Any) -> None:
    response = message.infer_response
    answer.late += answer.finals > 0
    final = bool(response.parameters[_FINAL].bool_param)
    answer.finals += final
    answer.error = answer.error or printable(message.error_message)
    if response.outputs:
        answer.responses.append(response)
    elif not final and not message.error_message:
        answer.empty += 1


def _record_error(answer: RecordedAnswer, error: Any) -> None:
    answer.timed_out = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    answer.error = answer.error or printable(error.details() or error.code().name)

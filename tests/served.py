# SPDX-License-Identifier: Apache-2.0
"""A judge that also sends requests to what it has loaded."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tests.judge import PATIENCE, Judge
from tests.servers import wait_until
from tests.unit.checks.repositories import put
from tritonctl.checks.examples.files import Example

# What never ends is given up after this many seconds.
NEVER = 4.0
VALUES = [1.0, 2.0, 3.0, 4.0]


class Served(Judge):
    """A tritonserver with the models of an example; their tensors are INPUT and OUTPUT, FP32."""

    def serve(self, files: Example) -> None:
        """Load its models, `m` last, in place of all others. Raises grpc.RpcError."""
        if self._server.poll() is None:
            self.clear()
        else:  # with what it left behind
            self.restart()
        shutil.rmtree(self._repository)
        put(self._repository, files)
        names = {name.split("/")[0] for name in files}
        for name in [*sorted(names - {"m"}), "m"]:
            request = service_pb2.RepositoryModelLoadRequest(model_name=name)
            self._stub.RepositoryModelLoad(request, timeout=PATIENCE)

    def died(self) -> int:
        """The exit status of the server, which ends by itself."""
        return self._server.wait(PATIENCE)

    def gone(self, seconds: float) -> bool:
        """Whether the server has ended a while later, or hangs in its crash."""
        with suppress(subprocess.TimeoutExpired):
            self._server.wait(seconds)
            return True
        try:
            self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=seconds)
        except grpc.RpcError:
            return True
        return False

    def infer(
        self, values: Sequence[float] = VALUES, patience: float = PATIENCE, **parameters: Any
    ) -> list[float]:
        """What `m` answers. Raises grpc.RpcError."""
        response = self._stub.ModelInfer(request_of("m", values, **parameters), timeout=patience)
        return floats(response.raw_output_contents[0])

    def answers(self, clients: int = 1, patience: float = PATIENCE) -> list[Any]:
        """What as many requests at once get of `m`: responses, or the error's text."""
        return self.answers_to(*[request_of("m", VALUES)] * clients, patience=patience)

    def answers_to(
        self, *requests: service_pb2.ModelInferRequest, patience: float = PATIENCE
    ) -> list[Any]:
        """What these get at once: responses, or the error's text."""
        futures = [self._stub.ModelInfer.future(one, timeout=patience) for one in requests]
        return [_outcome(future) for future in futures]

    def stands_still(self) -> bool:
        """Whether a request to `m` gets no answer."""
        try:
            self.infer(patience=NEVER)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.DEADLINE_EXCEEDED)
        return False

    def stream(
        self, name: str = "m", value: float = 0.0, patience: float = PATIENCE
    ) -> Iterator[service_pb2.ModelStreamInferResponse]:
        """The responses to one request, an empty last one, too. Raises grpc.RpcError."""
        request = request_of(name, [value] * 4, triton_enable_empty_final_response=True)
        yield from self._stub.ModelStreamInfer(iter([request]), timeout=patience)

    def streams(self, *names: str) -> Iterator[service_pb2.ModelStreamInferResponse]:
        """The responses to requests that are sent to `m` at once, each with its request's name."""
        requests = [request_of("m", VALUES) for _ in names]
        for request, name in zip(requests, names, strict=True):
            request.id = name
        yield from self._stub.ModelStreamInfer(iter(requests), timeout=PATIENCE)

    def declared(self) -> service_pb2.ModelMetadataResponse:
        """What it tells clients of the tensors of `m`."""
        return self._stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="m"))

    def instances(self) -> int:
        """How many `m` has, as the server filled its configuration in."""
        request = service_pb2.ModelConfigRequest(name="m")
        return sum(g.count for g in self._stub.ModelConfig(request).config.instance_group)

    def batches(self, requests: int) -> dict[int, int]:
        """How many executions of `m` there were, by batch size, once all requests are counted.

        Triton counts an execution after its answers have left.
        """
        counted: dict[int, int] = wait_until(
            lambda: self._batches(requests), f"{requests} requests are counted"
        )
        return counted

    def _batches(self, requests: int) -> dict[int, int] | None:
        request = service_pb2.ModelStatisticsRequest(name="m")
        [stats] = self._stub.ModelStatistics(request).model_stats
        counted = {one.batch_size: one.compute_infer.count for one in stats.batch_stats}
        executed = sum(size * count for size, count in counted.items())
        return counted if executed >= requests else None


def request_of(
    name: str, values: Sequence[float], **parameters: Any
) -> service_pb2.ModelInferRequest:
    """A request for one row of numbers; parameters: such as sequence_id, timeout."""
    request = service_pb2.ModelInferRequest(model_name=name)
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, len(values)])
    request.raw_input_contents.append(struct.pack(f"<{len(values)}f", *values))
    for key, value in parameters.items():
        field = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[key], field, value)
    return request


def floats(raw: bytes) -> list[float]:
    """The numbers of a tensor."""
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def _outcome(future: Any) -> Any:
    try:
        return future.result()
    except grpc.RpcError as error:
        return str(error.details())

# SPDX-License-Identifier: Apache-2.0
"""Send one real request to a newly loaded model and check its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from tritonctl.errors import ServerError, TritonctlError
from tritonctl.project.schema import Model, Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.error_map import from_message
from tritonctl.protocol.generation import SamplingParameters, generation_request, read_chunk
from tritonctl.protocol.model_config import Config
from tritonctl.protocol.tensors import infer_response
from tritonctl.smoke.inputs import is_text, request_of, text_inputs, valid_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PROMPT = "1"
_TOKENS = 16


@dataclass(frozen=True)
class SmokeResult:
    """Short texts of a request and its answer."""

    request: str
    answer: str


def smoke_model(
    project: Project,
    name: str,
    endpoint: Endpoint,
    loaded_name: str,
    config: Config,
    *,
    streams: bool,
) -> SmokeResult:
    """Send a request to a project's model loaded as `loaded_name`; ServerError for a bad answer.

    streams: whether it or one of its steps is decoupled.
    """
    model, timeout = project.models.get(name), float(project.server.ready_timeout_seconds)
    prompt = first_prompt(model, project.root) if model else _PROMPT
    if not streams:
        return smoke_tensors(endpoint, loaded_name, config, timeout)
    with _smoke_errors(loaded_name), Connection(endpoint) as connection:
        if model is None or model.task != "text_generation":
            return _smoke_stream(connection, prompt, loaded_name, config, timeout)
        return _smoke_text(connection, prompt, loaded_name, timeout)


def smoke_tensors(
    endpoint: Endpoint, loaded_name: str, config: Config, seconds: float
) -> SmokeResult:
    """Send a model its smallest valid input; ServerError for a bad answer."""
    with _smoke_errors(loaded_name), Connection(endpoint) as connection:
        return _smoke_tensors(connection, loaded_name, config, seconds)


@contextmanager
def _smoke_errors(loaded_name: str) -> Iterator[None]:
    try:
        yield
    except TritonctlError as error:
        raise ServerError(
            f"{loaded_name} is loaded but does not answer a smoke request: {error.problem}",
            remedy="see `tritonctl logs`",
        ) from error


def _smoke_text(
    connection: Connection, prompt: str, loaded_name: str, timeout: float
) -> SmokeResult:
    """Read the stream to its end: a call cancelled at its last chunk may stay in flight."""
    request = generation_request(loaded_name, prompt, SamplingParameters(max_tokens=_TOKENS))
    try:
        responses = list(connection.stream(request, seconds=timeout))
    except grpc.RpcError as error:
        raise connection.to_tritonctl_error(error) from error
    chunks = [chunk for response in responses if (chunk := read_chunk(response)[0])]
    if not chunks or not chunks[-1].num_output_tokens or not chunks[-1].finish_reason:
        raise ServerError(f"the answer to {prompt!r} is empty", remedy="try another prompt")
    return SmokeResult(prompt, "".join(chunk.text for chunk in chunks))


def _smoke_stream(
    connection: Connection, prompt: str, loaded_name: str, config: Config, timeout: float
) -> SmokeResult:
    """Read a stream of the project's own tensors to its end."""
    text_arrays = text_inputs(config, prompt, max_tokens=_TOKENS)
    inputs = text_arrays if is_text(config) else valid_inputs(config)
    request = request_of(loaded_name, config, inputs, stream=True)
    try:
        responses = list(connection.stream(request, seconds=timeout))
    except grpc.RpcError as error:
        raise connection.to_tritonctl_error(error) from error
    for response in responses:
        if response.error_message:
            raise from_message(response.error_message, loaded_name)
    outputs = [message.infer_response for message in responses if message.infer_response.outputs]
    if not outputs:
        raise ServerError(f"the answer to {_shapes(inputs)} is empty", remedy="try other inputs")
    return SmokeResult(
        _shapes(inputs), f"{len(outputs)} responses, {_shapes(infer_response(outputs[0]))}"
    )


def first_prompt(model: Model, root: Path) -> str:
    """Return the evaluation's first prompt, else `1`."""
    if model.evaluation is None:
        return _PROMPT
    try:
        with (root / model.evaluation.prompts).open(encoding="utf-8") as lines:
            return str(json.loads(next(lines))["text_input"])
    except (
        OSError,
        ValueError,
        KeyError,
        StopIteration,
    ):  # the build reports the problem
        return _PROMPT


def _smoke_tensors(
    connection: Connection, loaded_name: str, config: Config, timeout: float
) -> SmokeResult:
    inputs = valid_inputs(config)
    request = request_of(loaded_name, config, inputs)
    outputs = infer_response(connection.ask(request, seconds=timeout))
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ServerError(f"output {name} contains NaN or infinity", remedy="check the engine")
    return SmokeResult(_shapes(inputs), _shapes(outputs))


def _shapes(arrays: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join(f"{name}{list(array.shape)}" for name, array in arrays.items())

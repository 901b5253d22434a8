# SPDX-License-Identifier: Apache-2.0
"""One real request to a model that was just loaded: the answer must be whole and make sense."""

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
from tritonctl.protocol.error_map import refusal
from tritonctl.protocol.generation import SamplingParameters, generation_request, read_chunk
from tritonctl.protocol.model_config import Config
from tritonctl.protocol.tensors import infer_response
from tritonctl.server.smoke.inputs import is_text, request_of, text_inputs, valid_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PROMPT = "1"
_TOKENS = 16


@dataclass(frozen=True)
class Smoke:
    """A request and its answer, in short."""

    asked: str
    answered: str


def smoke(
    project: Project,
    name: str,
    endpoint: Endpoint,
    served_as: str,
    config: Config,
    *,
    streams: bool,
) -> Smoke:
    """Ask a project's model that is served under another name; ServerError for a bad answer.

    streams: whether it, or one of its steps, answers with any number of responses.
    """
    model, timeout = project.models.get(name), float(project.server.ready_timeout_seconds)
    prompt = first_prompt(model, project.root) if model else _PROMPT
    if not streams:
        return smoke_tensors(endpoint, served_as, config, timeout)
    with _answering(served_as), Connection(endpoint) as connection:
        if model is None or model.task != "text_generation":
            return _stream(connection, prompt, served_as, config, timeout)
        return _text(connection, prompt, served_as, timeout)


def smoke_tensors(endpoint: Endpoint, served_as: str, config: Config, seconds: float) -> Smoke:
    """Ask a model with the smallest input that it allows; ServerError for a bad answer."""
    with _answering(served_as), Connection(endpoint) as connection:
        return _tensors(connection, served_as, config, seconds)


@contextmanager
def _answering(served_as: str) -> Iterator[None]:
    try:
        yield
    except TritonctlError as error:
        raise ServerError(
            f"{served_as} is loaded but does not answer a smoke request: {error.problem}",
            remedy="look at `tritonctl logs`",
        ) from error


def _text(connection: Connection, prompt: str, served_as: str, timeout: float) -> Smoke:
    """Read to the very end: a call that is cancelled with its last chunk may stay in flight."""
    request = generation_request(served_as, prompt, SamplingParameters(max_tokens=_TOKENS))
    try:
        responses = list(connection.stream(request, seconds=timeout))
    except grpc.RpcError as error:
        raise connection.explained(error) from error
    chunks = [chunk for response in responses if (chunk := read_chunk(response)[0])]
    if not chunks or not chunks[-1].num_output_tokens or not chunks[-1].finish_reason:
        raise ServerError(f"{prompt!r} was answered with nothing", remedy="try another prompt")
    return Smoke(prompt, "".join(chunk.text for chunk in chunks))


def _stream(
    connection: Connection, prompt: str, served_as: str, config: Config, timeout: float
) -> Smoke:
    """A stream with tensors of the project's own: read to the very end, too."""
    known = text_inputs(config, prompt, max_tokens=_TOKENS)
    inputs = known if is_text(config) else valid_inputs(config)
    request = request_of(served_as, config, inputs, stream=True)
    try:
        responses = list(connection.stream(request, seconds=timeout))
    except grpc.RpcError as error:
        raise connection.explained(error) from error
    for response in responses:
        if response.error_message:
            raise refusal(response.error_message)
    parts = [one.infer_response for one in responses if one.infer_response.outputs]
    if not parts:
        raise ServerError(f"{_shapes(inputs)} was answered with nothing", remedy="try other inputs")
    return Smoke(_shapes(inputs), f"{len(parts)} responses, {_shapes(infer_response(parts[0]))}")


def first_prompt(model: Model, root: Path) -> str:
    """The first of the evaluation's prompts, else `1`."""
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
    ):  # the build reports what is wrong with it
        return _PROMPT


def _tensors(connection: Connection, served_as: str, config: Config, timeout: float) -> Smoke:
    inputs = valid_inputs(config)
    request = request_of(served_as, config, inputs)
    outputs = infer_response(connection.ask(request, seconds=timeout))
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ServerError(f"output {name} holds NaN or infinity", remedy="check the engine")
    return Smoke(_shapes(inputs), _shapes(outputs))


def _shapes(arrays: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join(f"{name}{list(array.shape)}" for name, array in arrays.items())

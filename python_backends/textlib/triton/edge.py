# SPDX-License-Identifier: Apache-2.0
"""Adapter between Triton's Python API and the rest of textlib.

`triton_python_backend_utils` exists only in Triton's stub process; besides this module only
metrics_publisher imports it.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from textlib.errors import (
    EngineFailedError,
    ModelConfigurationError,
    TextPathError,
    ensemble_error_code,
)
from textlib.panics import panics_as_errors
from textlib.tokens.token_chunk import TokenChunk
from textlib.triton.log_lines import tag_log_lines
from textlib.triton.parameters import ModelParameters

# Tokenising a prompt takes microseconds: more threads only take cores from the engine.
_MAX_TOKENIZER_THREADS = 4


@contextmanager
def reporting_load_errors(args: Mapping[str, str]) -> Iterator[ModelParameters]:
    """Yield the parameters; turn ModelConfigurationError into a Triton load error."""
    tag_log_lines(args["model_name"])
    try:
        yield ModelParameters.from_model_config(args["model_config"])
    except ModelConfigurationError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def version_folder(args: Mapping[str, str]) -> Path:
    """Return the folder that contains model.py."""
    return Path(args["model_repository"]) / args["model_version"]


def require_path(path: Path) -> Path:
    """Return `path`; raises ModelConfigurationError if it does not exist."""
    if not path.exists():
        raise ModelConfigurationError(
            f"{path} is missing: the model repository is incomplete. "
            "Run `tritonctl render` again; do not copy single models by hand."
        )
    return path


def queue_delay_ms(args: Mapping[str, str]) -> int:
    """Return the maximum delay of Triton's dynamic batcher for this model, rounded up."""
    batching = json.loads(args["model_config"]).get("dynamic_batching", {})
    return -(-int(batching.get("max_queue_delay_microseconds", 0)) // 1000)


def limit_tokenizer_threads() -> None:
    """Set the thread count of `tokenizers` (Rust, rayon); call this before the first encode."""
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("RAYON_NUM_THREADS", str(min(cores, _MAX_TOKENIZER_THREADS)))


def read_array(request: Any, name: str) -> NDArray[Any] | None:
    """Return the input tensor of that name; None if the request does not have it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def read_arrays(request: Any) -> dict[str, NDArray[Any]]:
    """Return every input tensor of the request; each lookup by name would scan all of them."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def request_parameters(request: Any) -> dict[str, Any]:
    """Return the request's parameters; an ensemble passes them to its steps."""
    parameters = json.loads(request.parameters() or "{}")
    return parameters if isinstance(parameters, dict) else {}


def tensor(name: str, array: NDArray[Any]) -> Any:
    """Create a Tensor, which several responses may share; text is an object array of bytes."""
    return pb_utils.Tensor(name, array)


def error_response(error: TextPathError) -> Any:
    """Create an InferenceResponse that carries the error with its TritonError code."""
    code = getattr(pb_utils.TritonError, error.code)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


ErrorCallback = Callable[[TextPathError], None]


def respond_to_each(
    requests: list[Any], make_outputs: Callable[[Any], list[Any]], on_error: ErrorCallback
) -> list[Any]:
    """Return one response per request of execute(); an error affects only its request.

    on_error: called for each failed request, because Triton counts an error response as a success.
    """
    return [build_response(partial(make_outputs, request), on_error) for request in requests]


def build_response(make_outputs: Callable[[], list[Any]], on_error: ErrorCallback) -> Any:
    """Create an InferenceResponse of the Tensors, or of the error that `make_outputs` raises."""
    try:
        with panics_as_errors():
            return pb_utils.InferenceResponse(output_tensors=make_outputs())
    except TextPathError as error:
        problem = error
    except Exception as error:
        problem = EngineFailedError(f"unexpected {type(error).__name__}: {error}")
    on_error(problem)
    return error_response(problem)


class TritonSink:
    """A `decoder_stream.ResponseSink` over the response sender of a decoupled request."""

    def __init__(self, sender: Any, outputs: Callable[[TokenChunk], list[Any]]) -> None:
        """`outputs`: returns the Tensors of the response for a chunk."""
        self._sender = sender
        self._outputs = outputs

    def send(self, chunk: TokenChunk) -> None:
        """Send the Tensors of a chunk."""
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if chunk.last else 0
        response = pb_utils.InferenceResponse(output_tensors=self._outputs(chunk))
        self._sender.send(response, flags=flags)

    def fail(self, error: TextPathError) -> None:
        """Send the error as the final response."""
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._sender.send(error_response(error), flags=final)

    def is_cancelled(self) -> bool:
        """Ask the server; always False inside an ensemble (triton-inference-server issue 6739)."""
        return bool(self._sender.is_cancelled())


def copy_request(request: Any, model: str) -> Any:
    """Create the same request for another model of this server.

    The tensors are copies: Triton releases the originals when execute() returns.
    """
    return pb_utils.InferenceRequest(
        model_name=model,
        inputs=[pb_utils.Tensor(t.name(), t.as_numpy().copy()) for t in request.inputs()],
        requested_output_names=list(request.requested_output_names()),
        request_id=request.request_id(),
        timeout=request.timeout(),
        trace=request.trace(),
    )


def single_response(request: Any, tensors: Collection[str]) -> Any:
    """Run a request and return the only response of a decoupled model, or its error.

    tensors: names of the model's inputs, to classify its error messages.
    """
    result = None
    for response in request.exec(decoupled=True):
        if response.has_error():
            message = response.error().message()
            code = getattr(pb_utils.TritonError, ensemble_error_code(message, tensors))
            result = pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
        elif response.output_tensors():  # the final response may be empty
            result = pb_utils.InferenceResponse(output_tensors=response.output_tensors())
    if result is None:
        raise EngineFailedError("the model sent no response.")
    return result


def send_single_response(sender: Any, answer: Any) -> None:
    """Send an InferenceResponse, or an error, as the only response."""
    response = error_response(answer) if isinstance(answer, TextPathError) else answer
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

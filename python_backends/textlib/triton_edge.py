# SPDX-License-Identifier: Apache-2.0
"""Between Triton's Python API and the rest of textlib; only triton_metrics imports it besides.

`triton_python_backend_utils` exists in Triton's stub process alone.
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

from textlib.errors import ConfigurationError, EngineFailedError, TextPathError, code_of
from textlib.log_lines import name_lines
from textlib.parameters import ModelParameters
from textlib.token_chunk import TokenChunk

# A prompt is tokenised in microseconds: more threads than this only take cores from the engine.
_MOST_TOKENIZER_THREADS = 4


@contextmanager
def loading(args: Mapping[str, str]) -> Iterator[ModelParameters]:
    """Give initialize() its parameters; what goes wrong becomes a readable load error."""
    name_lines(args["model_name"])
    try:
        yield ModelParameters.from_model_config(args["model_config"])
    except ConfigurationError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def version_folder(args: Mapping[str, str]) -> Path:
    """The folder that model.py lies in."""
    return Path(args["model_repository"]) / args["model_version"]


def existing(path: Path) -> Path:
    """`path` if it exists, else ConfigurationError."""
    if not path.exists():
        raise ConfigurationError(
            f"{path} is missing: the model repository is incomplete. "
            "Run `tritonctl render` again; do not copy single models by hand."
        )
    return path


def queue_delay_ms(args: Mapping[str, str]) -> int:
    """How long Triton may hold requests of this model back to batch them, rounded up."""
    batching = json.loads(args["model_config"]).get("dynamic_batching", {})
    return -(-int(batching.get("max_queue_delay_microseconds", 0)) // 1000)


def limit_tokenizer_threads() -> None:
    """Set the thread count of `tokenizers` (Rust, rayon); call it before the first encode."""
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("RAYON_NUM_THREADS", str(min(cores, _MOST_TOKENIZER_THREADS)))


def read_array(request: Any, name: str) -> NDArray[Any] | None:
    """The input tensor of that name, or None if the request does not carry it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def read_arrays(request: Any) -> dict[str, NDArray[Any]]:
    """Every input tensor of the request; looking them up one by one goes over all each time."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def request_parameters(request: Any) -> dict[str, Any]:
    """What a client sent beside its tensors; an ensemble hands it on to its steps."""
    parameters = json.loads(request.parameters() or "{}")
    return parameters if isinstance(parameters, dict) else {}


def tensor(name: str, array: NDArray[Any]) -> Any:
    """A Tensor; text goes in as an object array of bytes. It may be part of several responses."""
    return pb_utils.Tensor(name, array)


def error_response(error: TextPathError) -> Any:
    """An InferenceResponse that carries the error with its TritonError code."""
    code = getattr(pb_utils.TritonError, error.code)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


Failed = Callable[[TextPathError], None]


def answer_each(
    requests: list[Any], answer: Callable[[Any], list[Any]], failed: Failed
) -> list[Any]:
    """One response of Tensors per request of execute(); a failing request fails alone.

    failed: is called for each, because Triton counts an answered error as a success.
    """
    return [response_to(partial(answer, request), failed) for request in requests]


def response_to(answer: Callable[[], list[Any]], failed: Failed) -> Any:
    """An InferenceResponse of these Tensors, or of the error that making them raised."""
    try:
        return pb_utils.InferenceResponse(output_tensors=answer())
    except TextPathError as error:
        problem = error
    except Exception as error:
        problem = EngineFailedError(f"unexpected {type(error).__name__}: {error}")
    failed(problem)
    return error_response(problem)


class TritonSink:
    """A ResponseSink (textlib.decoder_stream) over the response sender of a decoupled request."""

    def __init__(self, sender: Any, outputs: Callable[[TokenChunk], list[Any]]) -> None:
        """`outputs`: the Tensors that answer with a chunk."""
        self._sender = sender
        self._outputs = outputs

    def send(self, chunk: TokenChunk) -> None:
        """Answer with the Tensors of a chunk."""
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if chunk.last else 0
        response = pb_utils.InferenceResponse(output_tensors=self._outputs(chunk))
        self._sender.send(response, flags=flags)

    def fail(self, error: TextPathError) -> None:
        """Answer with the error; the request ends."""
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._sender.send(error_response(error), flags=final)

    def is_cancelled(self) -> bool:
        """Ask the server; always False inside an ensemble (triton-inference-server issue 6739)."""
        return bool(self._sender.is_cancelled())


def forwarded(request: Any, model: str) -> Any:
    """The same request for another model of this server.

    Its tensors are copies: Triton takes the originals back when execute() returns.
    """
    return pb_utils.InferenceRequest(
        model_name=model,
        inputs=[pb_utils.Tensor(t.name(), t.as_numpy().copy()) for t in request.inputs()],
        requested_output_names=list(request.requested_output_names()),
        request_id=request.request_id(),
        timeout=request.timeout(),
        trace=request.trace(),
    )


def only_answer(request: Any, tensors: Collection[str]) -> Any:
    """The response of a decoupled model that answers once, or its error; waits for it.

    tensors: the inputs of that model, which its errors are about.
    """
    answer = None
    for response in request.exec(decoupled=True):
        if response.has_error():
            message = response.error().message()
            code = getattr(pb_utils.TritonError, code_of(message, tensors))
            answer = pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
        elif response.output_tensors():  # the final response may be empty
            answer = pb_utils.InferenceResponse(output_tensors=response.output_tensors())
    if answer is None:
        raise EngineFailedError("the answer ended before it began.")
    return answer


def answer_with(sender: Any, answer: Any) -> None:
    """Send an InferenceResponse, or an error, as the only one."""
    response = error_response(answer) if isinstance(answer, TextPathError) else answer
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

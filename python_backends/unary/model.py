# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: calls the streaming ensemble and responds once with the whole text.

An ensemble with a decoupled step is decoupled: Triton rejects ModelInfer and HTTP `infer` for it.
This model is not decoupled and has no engine; a request costs a waiting thread and a copy of its
text.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from textlib.errors import EngineFailedError, RequestError, TextPathError
from textlib.triton.edge import (
    copy_request,
    read_array,
    reporting_load_errors,
    send_single_response,
    single_response,
)
from textlib.triton.step_metrics import StepMetrics

_SUFFIX = "_unary"


class TritonPythonModel:
    """The model `<model>_unary` with the inputs and outputs of `<model>`."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Start the threads; requests call the ensemble by name."""
        with reporting_load_errors(args) as parameters:
            threads = parameters.integer("max_requests")
        self._tensors = {entry["name"] for entry in json.loads(args["model_config"])["input"]}
        self._ensemble = args["model_name"].removesuffix(_SUFFIX)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="unary")
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> None:
        """Submit each request to a thread and return at once."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                inner = self._ensemble_request(request)
            except TextPathError as error:
                self._fail(sender, error)
            else:
                self._executor.submit(self._answer, sender, inner)

    def finalize(self) -> None:
        """Stop the threads; Triton unloads a model only without live requests."""
        self._executor.shutdown()
        self._metrics.close()

    def _ensemble_request(self, request: Any) -> Any:
        stream = read_array(request, "stream")
        if stream is not None and stream.any():
            raise RequestError(
                f"stream is true, but this model responds once. Leave it out, or call "
                f"{self._ensemble} over a gRPC stream or HTTP generate_stream."
            )
        return copy_request(request, self._ensemble)

    def _answer(self, sender: Any, inner: Any) -> None:
        try:
            answer = single_response(inner, self._tensors)
        except TextPathError as error:
            self._fail(sender, error)
        except Exception as error:
            self._fail(sender, EngineFailedError(f"unexpected {type(error).__name__}: {error}"))
        else:
            send_single_response(sender, answer)

    def _fail(self, sender: Any, error: TextPathError) -> None:
        self._metrics.count_error(error)
        send_single_response(sender, error)

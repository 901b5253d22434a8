# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: asks the ensemble that streams, and answers once, with the whole text.

An ensemble with a decoupled step is decoupled: Triton refuses ModelInfer and HTTP `infer` for it.
This model is not. It holds no engine; a request costs a thread that waits, and a copy of its text.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from textlib.errors import EngineFailedError, RequestError, TextPathError
from textlib.step_metrics import StepMetrics
from textlib.triton_edge import answer_with, forwarded, loading, only_answer, read_array

_SUFFIX = "_unary"


class TritonPythonModel:
    """The inputs of `<model>` to its outputs, for the model `<model>_unary`."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Nothing is loaded: the ensemble is asked by its name."""
        with loading(args) as parameters:
            threads = parameters.integer("max_requests")
        self._tensors = {entry["name"] for entry in json.loads(args["model_config"])["input"]}
        self._ensemble = args["model_name"].removesuffix(_SUFFIX)
        self._waiting = ThreadPoolExecutor(threads, thread_name_prefix="unary")
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> None:
        """Hand each request on, and return at once: the answers come from threads."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                inner = self._inner(request)
            except TextPathError as error:
                self._fail(sender, error)
            else:
                self._waiting.submit(self._answer, sender, inner)

    def finalize(self) -> None:
        """Triton unloads a model only when nobody waits for it."""
        self._waiting.shutdown()
        self._metrics.close()

    def _inner(self, request: Any) -> Any:
        stream = read_array(request, "stream")
        if stream is not None and stream.any():
            raise RequestError(
                f"stream is true, but this model answers once. Leave it out, or ask "
                f"{self._ensemble} over a gRPC stream or HTTP generate_stream."
            )
        return forwarded(request, self._ensemble)

    def _answer(self, sender: Any, inner: Any) -> None:
        try:
            answer = only_answer(inner, self._tensors)
        except TextPathError as error:
            self._fail(sender, error)
        except Exception as error:
            self._fail(sender, EngineFailedError(f"unexpected {type(error).__name__}: {error}"))
        else:
            answer_with(sender, answer)

    def _fail(self, sender: Any, error: TextPathError) -> None:
        self._metrics.failed(error)
        answer_with(sender, error)

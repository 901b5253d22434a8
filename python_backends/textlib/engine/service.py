# SPDX-License-Identifier: Apache-2.0
"""A text-generation engine as a Triton model: everything except loading it.

class TritonPythonModel(EngineModel):
    def initialize(self, args):
        with reporting_load_errors(args) as parameters:
            self.serve(args, parameters, EngineService(MyEngine(...), limits, capacity))
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textlib.engine.activity import EngineActivity
from textlib.engine.contract import GenerationEngine, no_wake
from textlib.errors import EngineFailedError, TextPathError
from textlib.scheduling.admission import TRITON_DECIDES
from textlib.scheduling.decoder_loop import DecoderLoop
from textlib.scheduling.decoder_stream import ResponseSink
from textlib.scheduling.response_pacing import ResponsePacing
from textlib.tokens.resume_check import check_resumed_text
from textlib.tokens.token_bytes import load_token_bytes
from textlib.triton.edge import (
    limit_tokenizer_threads,
    read_arrays,
    request_parameters,
    require_path,
    version_folder,
)
from textlib.triton.engine_metrics import (
    SHADOW_PARAMETER,
    Gauges,
    KvCache,
    MetricKey,
    MetricsThread,
)
from textlib.triton.engine_responses import EngineResponses
from textlib.triton.metrics_publisher import TritonPublisher
from textlib.triton.parameters import ModelParameters
from textlib.triton.prompts import Inputs, PromptResult, RequestEncoder
from textlib.triton.request_tensors import (
    SequenceLimits,
    read_generation_request,
    with_prompt,
    with_tenant,
)
from textlib.triton.server_memory import ServerMemory


@dataclass(frozen=True, slots=True)
class EngineService:
    """An engine and its settings."""

    engine: GenerationEngine
    limits: SequenceLimits
    capacity: int  # maximum streams in the engine
    max_queue_size: int = TRITON_DECIDES  # see textlib.scheduling.admission
    kv_cache: Callable[[], KvCache] | None = None  # called ten times a second, from any thread
    publishes_metrics: bool = True
    wake: Callable[[], None] = no_wake  # ends a waiting step; called from any thread


class EngineModel:
    """Base class of an engine's TritonPythonModel; `initialize` calls `serve` at its end."""

    def serve(
        self, args: Mapping[str, str], parameters: ModelParameters, service: EngineService
    ) -> None:
        """Start the loop and the metrics. Raises ModelConfigurationError."""
        folder = version_folder(args) / "tokenizer"
        table = load_token_bytes(
            require_path(folder / "tokenizer.json"),
            skip_special_tokens=parameters.boolean("skip_special_tokens"),
        )
        self._service = service
        self._prompts = None
        if parameters.boolean("fused", default=False):
            limit_tokenizer_threads()
            self._public_names = parameters.json_object("public_names")
            self._prompts = RequestEncoder(folder, parameters)
        self._table = table
        self._responses = EngineResponses.from_parameters(parameters, table)
        self._loop = DecoderLoop(
            service.engine,
            capacity=service.capacity,
            max_queue_size=service.max_queue_size,
            table=table,
            receipts=self._responses.open_receipt_watch(),
            wake=service.wake,
            pace=ResponsePacing.from_milliseconds(
                parameters.integer("stream_interval_ms", minimum=0, default=0)
            ),
        )
        self._loop.start()
        self._metrics = None
        if service.publishes_metrics:
            self._metrics = MetricsThread(
                TritonPublisher(args),
                self._measure,
                memory=ServerMemory(os.getppid()).read,
                is_running=EngineActivity(os.getpid()).is_running,
            )
            self._metrics.start()

    def execute(self, requests: list[Any]) -> None:
        """Submit the requests to the loop, which responds through their response senders."""
        if self._prompts is None:
            for request in requests:
                self._submit(request, read_arrays(request))
        else:
            renamed_inputs = [self._with_step_names(read_arrays(request)) for request in requests]
            rows = self._prompts.encode(renamed_inputs)
            for request, inputs, prompts in zip(requests, renamed_inputs, rows, strict=True):
                self._submit(request, inputs, prompts)
        self._loop.wait_for_capacity()

    def finalize(self) -> None:
        """Stop the loop; live requests get an error."""
        self._loop.close()
        if self._prompts:
            self._prompts.close()
        if self._metrics:
            self._metrics.close()

    def _measure(self) -> tuple[dict[MetricKey, float], Gauges]:
        totals, gauges = self._loop.measure()
        if self._service.kv_cache is None:
            return totals, gauges
        cache = self._service.kv_cache()
        return totals | cache.totals(), gauges.with_cache(cache)

    def _with_step_names(self, inputs: Inputs) -> Inputs:
        """Return the tensors under the ensemble's names and under the steps' names."""
        renamed = {
            step_name: inputs[name]
            for step_name, name in self._public_names.items()
            if name in inputs
        }
        return {**inputs, **renamed}

    def _submit(
        self, request: Any, inputs: Inputs, prompts: Sequence[PromptResult] | None = None
    ) -> None:
        sink = self._responses.response_sink(request)
        try:
            tensors = inputs if prompts is None else with_prompt(inputs, prompts)
            generation = read_generation_request(tensors.get, self._service.limits)
            parameters = request_parameters(request)
            generation = with_tenant(generation, parameters)
            if generation.num_resumed_ids:
                check_resumed_text(generation, self._table, parameters)
            self._loop.submit(generation, sink, timed=not parameters.get(SHADOW_PARAMETER))
        except TextPathError as error:
            self._reject(sink, error)
        except Exception as error:
            problem = EngineFailedError(f"unexpected {type(error).__name__}: {error}")
            self._reject(sink, problem)

    def _reject(self, sink: ResponseSink, error: TextPathError) -> None:
        sink.fail(error)
        self._loop.errors.add(error)

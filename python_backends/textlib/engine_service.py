# SPDX-License-Identifier: Apache-2.0
"""A text-generation engine as a Triton model: everything but loading it.

class TritonPythonModel(EngineModel):
    def initialize(self, args):
        with loading(args) as parameters:
            self.serve(args, parameters, Service(MyEngine(...), limits, capacity))
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textlib.admission import TRITON_DECIDES
from textlib.answers import Answers
from textlib.decoder_loop import DecoderLoop
from textlib.decoder_stream import ResponseSink
from textlib.engine_contract import Engine, no_wait
from textlib.engine_metrics import SHADOW, Gauges, Key, KvCache, MetricsThread
from textlib.errors import EngineFailedError, TextPathError
from textlib.pace import Pace
from textlib.parameters import ModelParameters
from textlib.prompts import Inputs, Prompts, Row
from textlib.request_tensors import SequenceLimits, read_generation_request, with_prompt
from textlib.resumed import check_resumed
from textlib.server_memory import ServerMemory
from textlib.token_bytes import load_token_bytes
from textlib.triton_edge import (
    existing,
    limit_tokenizer_threads,
    read_arrays,
    request_parameters,
    version_folder,
)
from textlib.triton_metrics import TritonPublisher


@dataclass(frozen=True, slots=True)
class Service:
    """An engine and how it is served.

    capacity: streams that it has at most. max_queue_size: textlib.admission. kv_cache: what it
    tells about its cache, asked from any thread ten times a second. publishes: with metrics. wake:
    lets a step that waits return, from any thread.
    """

    engine: Engine
    limits: SequenceLimits
    capacity: int
    max_queue_size: int = TRITON_DECIDES
    kv_cache: Callable[[], KvCache] | None = None
    publishes: bool = True
    wake: Callable[[], None] = no_wait


class EngineModel:
    """Base of an engine's TritonPythonModel; `initialize` calls `serve` at its end."""

    def serve(self, args: Mapping[str, str], parameters: ModelParameters, service: Service) -> None:
        """Start the loop, and the metrics. Raises ConfigurationError."""
        folder = version_folder(args) / "tokenizer"
        table = load_token_bytes(
            existing(folder / "tokenizer.json"),
            skip_special_tokens=parameters.boolean("skip_special_tokens"),
        )
        self._service = service
        self._prompts = None
        if parameters.boolean("fused", default=False):
            limit_tokenizer_threads()
            self._public_names = parameters.record("public_names")
            self._prompts = Prompts(folder, parameters)
        self._table = table
        self._answers = Answers.of(parameters, table)
        self._loop = DecoderLoop(
            service.engine,
            capacity=service.capacity,
            max_queue_size=service.max_queue_size,
            table=table,
            receipts=self._answers.watch(),
            wake=service.wake,
            pace=Pace.of_milliseconds(
                parameters.integer("stream_interval_ms", minimum=0, default=0)
            ),
        )
        self._loop.start()
        self._metrics = None
        if service.publishes:
            self._metrics = MetricsThread(
                TritonPublisher(args), self._measure, memory=ServerMemory(os.getppid()).read
            )
            self._metrics.start()

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests to the loop; it answers through their response senders."""
        if self._prompts is None:
            for request in requests:
                self._submit(request, read_arrays(request))
        else:
            named = [self._named(read_arrays(request)) for request in requests]
            rows = self._prompts.encode(named)
            for request, given, prompts in zip(requests, named, rows, strict=True):
                self._submit(request, given, prompts)
        self._loop.await_room()

    def finalize(self) -> None:
        """Stop the loop; what still runs is answered with an error."""
        self._loop.close()
        if self._prompts:
            self._prompts.close()
        if self._metrics:
            self._metrics.close()

    def _measure(self) -> tuple[dict[Key, float], Gauges]:
        totals, gauges = self._loop.measure()
        if self._service.kv_cache is None:
            return totals, gauges
        cache = self._service.kv_cache()
        return totals | cache.totals(), gauges.with_cache(cache)

    def _named(self, given: Inputs) -> Inputs:
        """The tensors by the names that the steps have for them, besides the ensemble's."""
        own = {own: given[name] for own, name in self._public_names.items() if name in given}
        return {**given, **own}

    def _submit(self, request: Any, given: Inputs, prompts: Sequence[Row] | None = None) -> None:
        sink = self._answers.sink(request)
        try:
            tensors = given if prompts is None else with_prompt(given, prompts)
            generation = read_generation_request(tensors.get, self._service.limits)
            parameters = request_parameters(request)
            if generation.resumed:
                check_resumed(generation, self._table, parameters)
            self._loop.submit(generation, sink, timed=not parameters.get(SHADOW))
        except TextPathError as error:
            self._refuse(sink, error)
        except Exception as error:
            problem = EngineFailedError(f"unexpected {type(error).__name__}: {error}")
            self._refuse(sink, problem)

    def _refuse(self, sink: ResponseSink, error: TextPathError) -> None:
        sink.fail(error)
        self._loop.errors.add(error)

# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: scripted token ids through the real decoder loop.

`random_seed` n replays entry n of 1/engine/scripts.json; without it the prompt's own ids come back,
unless the first entry is for all.
An entry (all but `ids` optional):

    ids       the token ids; `max_tokens` cuts them and makes the finish reason `length`
    sizes     ids per step, repeated; [1] if absent. Coalescing may join steps under load
    repeat    true: start over at the end of `ids`, up to `max_tokens`
    step_ms   how long each step takes; the slowest live stream sets the pace
    error     after the ids the stream fails with this message
    for_all   true, of the first entry: it also answers what comes without `random_seed`
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textlib.engine.contract import StreamProgress
from textlib.engine.service import EngineModel, EngineService
from textlib.errors import EngineFailedError, RequestError
from textlib.scheduling.admission import TRITON_DECIDES
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.edge import reporting_load_errors, require_path, version_folder
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import GenerationRequest, SequenceLimits


@dataclass
class _Playing:
    ids: Sequence[int]
    sizes: Sequence[int]
    step_seconds: float
    finish: FinishReason
    error: str | None
    position: int = 0
    turn: int = 0

    @classmethod
    def of(cls, script: Mapping[str, Any], max_tokens: int, resumed: int) -> "_Playing":
        ids = script["ids"]
        max_tokens += resumed
        if script.get("repeat") and ids:
            ids = ids * (max_tokens // len(ids) + 1)
        cut = len(ids) > max_tokens or bool(script.get("repeat"))
        return cls(
            ids=ids[:max_tokens],
            sizes=script.get("sizes") or [1],
            step_seconds=script.get("step_ms", 0) / 1000,
            finish=FinishReason.LENGTH if cut else FinishReason.STOP,
            error=script.get("error"),
            position=resumed,
        )

    def advance(self, stream_id: int) -> StreamProgress:
        """The next ids of this stream."""
        size = self.sizes[self.turn % len(self.sizes)]
        new = self.ids[self.position : self.position + size]
        self.turn, self.position = self.turn + 1, self.position + len(new)
        if self.position < len(self.ids):
            return StreamProgress(stream_id, new)
        error = EngineFailedError(self.error) if self.error else None
        return StreamProgress(stream_id, new, self.finish, error)


class ReplayEngine:
    """textlib's Engine without a model."""

    def __init__(self, scripts: Sequence[Mapping[str, Any]]) -> None:
        self._scripts = scripts
        self._live: dict[int, _Playing] = {}

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Start a script, behind what was sent before a break."""
        seed = request.sampling.seed
        if seed is not None and seed >= len(self._scripts):
            raise RequestError(f"random_seed is {seed}: there are {len(self._scripts)} scripts.")
        if seed is None and self._scripts and self._scripts[0].get("for_all"):
            seed = 0
        prompt = request.token_ids[: request.num_input_tokens]
        script = {"ids": prompt.tolist()} if seed is None else self._scripts[seed]
        self._live[stream_id] = _Playing.of(
            script, request.sampling.max_tokens, request.num_resumed_ids
        )

    def step(self) -> Sequence[StreamProgress]:
        """Advance every stream."""
        if pause := max(playing.step_seconds for playing in self._live.values()):
            time.sleep(pause)
        progress = [playing.advance(stream_id) for stream_id, playing in self._live.items()]
        for item in progress:
            if item.finish:
                del self._live[item.stream_id]
        return progress

    def cancel(self, stream_id: int) -> None:
        """Forget a stream."""
        self._live.pop(stream_id, None)


def _limits(parameters: ModelParameters) -> SequenceLimits:
    return SequenceLimits(
        max_input_len=parameters.integer("max_input_len"),
        max_seq_len=parameters.integer("max_seq_len"),
        kv_tokens=parameters.integer("max_seq_len"),
        vocab_size=parameters.integer("vocab_size"),
        eos_token_ids=parameters.integers("eos_token_ids"),
    )


class TritonPythonModel(EngineModel):
    """The tensors are those of openvino_engine."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the scripts and start the decoder loop."""
        with reporting_load_errors(args) as parameters:
            file = require_path(version_folder(args) / "engine" / "scripts.json")
            service = EngineService(
                ReplayEngine(json.loads(file.read_text(encoding="utf-8"))),
                _limits(parameters),
                capacity=parameters.integer("max_num_seqs"),
                max_queue_size=parameters.integer("max_queue_size", minimum=TRITON_DECIDES),
                publishes_metrics=False,
            )
            self.serve(args, parameters, service)

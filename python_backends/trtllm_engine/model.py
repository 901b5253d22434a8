# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: TensorRT-LLM's LLM behind the decoder loop, one code path for both worlds.

The runtime schedules in its own threads or processes: a "step" returns its next updates.
https://nvidia.github.io/TensorRT-LLM/llm-api/
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tokenizers import Tokenizer

from textlib.engine.contract import StreamProgress
from textlib.engine.service import EngineModel, EngineService
from textlib.errors import EngineFailedError, RequestError
from textlib.panics import panics_as_errors
from textlib.scheduling.admission import TRITON_DECIDES
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.edge import reporting_load_errors, require_path, version_folder
from textlib.triton.engine_metrics import KvCache
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import GenerationRequest, SequenceLimits
from trtllmlib.llm_streams import LlmStreams, StreamUpdate
from trtllmlib.runtime import ENGINE, open_llm
from trtllmlib.sampling_params import SamplingTranslator

# How long a step waits for updates. It is short because meanwhile no request can start or abort;
# the runtime does not wait for it.
_PATIENCE_SECONDS = 0.01
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class TrtllmEngine:
    """A GenerationEngine over an LLM that sees only token ids."""

    def __init__(self, folder: Path, parameters: ModelParameters) -> None:
        self._tokenizer = Tokenizer.from_file(
            str(require_path(folder / "tokenizer" / "tokenizer.json"))
        )
        llm, self._runtime = open_llm(folder, parameters)
        self._streams = LlmStreams(llm)
        eos_token_ids = parameters.integers("eos_token_ids")
        self._translator = SamplingTranslator(self._runtime, eos_token_ids, self._spellings)
        self._end_ids: dict[int, int] = {}  # of requests whose end id the runtime omits

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Pass a request to the runtime, which schedules it."""
        arguments = {
            "inputs": request.token_ids.tolist(),
            "sampling_params": self._translator.translate(request),
            "streaming": True,
        }
        if request.lora_name:
            arguments["lora_request"] = self._runtime.lora_request(request.lora_name)
        try:
            self._streams.start(stream_id, arguments, log_probs=request.sampling.log_probs)
        except (ValueError, TypeError) as error:  # TensorRT-LLM checks the request
            raise RequestError(f"TensorRT-LLM rejects the request: {error}") from error
        sampling = request.sampling
        if self._runtime.world == ENGINE and sampling.min_tokens and sampling.end_ids:
            self._end_ids[stream_id] = sampling.end_ids[0]

    def step(self) -> Sequence[StreamProgress]:
        """Return the runtime's progress since the last call; empty after a short wait."""
        return [
            self._progress(update) for update in self._streams.wait_for_updates(_PATIENCE_SECONDS)
        ]

    def cancel(self, stream_id: int) -> None:
        """Free the slot and the KV blocks of a sequence."""
        self._end_ids.pop(stream_id, None)
        self._streams.abort(stream_id)

    def kv_cache(self) -> KvCache:
        """Return the blocks as of the runtime's latest iteration; called from any thread."""
        stats = self._streams.kv_cache()
        if not stats:
            return KvCache()
        used, free = stats.get("usedNumBlocks", 0), stats.get("freeNumBlocks", 0)
        if self._streams.is_idle:  # blocks of the prefix cache are free
            used, free = 0, used + free
        return KvCache(used, free, stats.get("reusedBlocks"), stats.get("missedBlocks"))

    def close(self) -> None:
        """Stop all requests and the library's processes."""
        self._streams.close()

    def _progress(self, update: StreamUpdate) -> StreamProgress:
        ids, log_probs = update.token_ids, update.log_probs
        end_id = self._end_ids.pop(update.stream_id, None) if update.is_finished else None
        if update.finish == "stop" and end_id is not None and not log_probs:
            ids = [*ids, end_id]  # without log probability
        finish = _FINISH.get(update.finish or "", FinishReason.NONE)
        error = None
        if update.error or (update.finish and not finish):
            reason = update.error or f"its finish reason is `{update.finish}`"
            error = EngineFailedError(f"TensorRT-LLM gave the request up: {reason}")
        return StreamProgress(update.stream_id, ids, finish, error, log_probs)

    def _spellings(self, word: bytes) -> Sequence[Sequence[int]]:
        text = word.decode("utf-8")
        with panics_as_errors():
            spelled = [
                tuple(self._tokenizer.encode(variant, add_special_tokens=False).ids)
                for variant in (text, f" {text}")
            ]
        return list(dict.fromkeys(ids for ids in spelled if ids))


def sequence_limits(parameters: ModelParameters) -> SequenceLimits:
    """Return the limits for requests; the runtime itself waits for free KV blocks."""
    max_seq_len = parameters.integer("max_seq_len")
    return SequenceLimits(
        max_input_len=parameters.integer("max_input_len"),
        max_seq_len=max_seq_len,
        kv_tokens=int(parameters.json_object("kv_cache_config").get("max_tokens") or max_seq_len),
        vocab_size=parameters.integer("vocab_size"),
        eos_token_ids=parameters.integers("eos_token_ids"),
    )


class TritonPythonModel(EngineModel):
    """See backend.toml for the tensors."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/engine or 1/checkpoint and start the decoder loop."""
        with reporting_load_errors(args) as parameters, ExitStack() as undo:
            limits = sequence_limits(parameters)
            self._engine = TrtllmEngine(version_folder(args), parameters)
            undo.callback(self._engine.close)
            service = EngineService(
                self._engine,
                limits,
                # The runtime queues requests without a slot; a longer queue is not faster.
                capacity=parameters.integer("max_num_seqs"),
                max_queue_size=parameters.integer("max_queue_size", minimum=TRITON_DECIDES),
                kv_cache=self._engine.kv_cache,
            )
            self.serve(args, parameters, service)
            undo.pop_all()

    def finalize(self) -> None:
        """Stop the loop, then the runtime."""
        super().finalize()
        self._engine.close()

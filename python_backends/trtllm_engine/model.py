# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: TensorRT-LLM's LLM behind the decoder loop, one code path for both worlds.

The runtime does its own scheduling, in threads or processes: a "step" here is the next news
from it. https://nvidia.github.io/TensorRT-LLM/llm-api/
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tokenizers import Tokenizer

from textlib.admission import TRITON_DECIDES
from textlib.engine_contract import Progress
from textlib.engine_metrics import KvCache
from textlib.engine_service import EngineModel, Service
from textlib.errors import EngineFailedError, RequestError
from textlib.parameters import ModelParameters
from textlib.request_tensors import GenerationRequest, SequenceLimits
from textlib.token_chunk import FinishReason
from textlib.triton_edge import existing, loading, version_folder
from trtllmlib.llm_streams import LlmStreams, News
from trtllmlib.runtime import ENGINE, open_llm
from trtllmlib.sampling_params import SamplingTranslator

# How long a step waits for news. Meanwhile nothing is added and nothing aborted, so it is short;
# the runtime does not notice.
_PATIENCE_SECONDS = 0.01
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class TrtllmEngine:
    """textlib's Engine over an LLM that sees token ids only."""

    def __init__(self, folder: Path, parameters: ModelParameters) -> None:
        self._tokenizer = Tokenizer.from_file(
            str(existing(folder / "tokenizer" / "tokenizer.json"))
        )
        llm, self._runtime = open_llm(folder, parameters)
        self._streams = LlmStreams(llm)
        eos_token_ids = parameters.integers("eos_token_ids")
        self._translator = SamplingTranslator(self._runtime, eos_token_ids, self._spellings)
        self._end_ids: dict[int, int] = {}  # of requests whose end id the runtime leaves out

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Hand a request to the runtime, which lets it join when it can."""
        arguments = {
            "inputs": request.token_ids.tolist(),
            "sampling_params": self._translator.translate(request),
            "streaming": True,
        }
        if request.lora_name:
            arguments["lora_request"] = self._runtime.lora_request(request.lora_name)
        try:
            self._streams.start(stream_id, arguments, log_probs=request.sampling.log_probs)
        except (ValueError, TypeError) as error:  # its checks of the request
            raise RequestError(f"TensorRT-LLM refuses the request: {error}") from error
        sampling = request.sampling
        if self._runtime.world == ENGINE and sampling.min_tokens and sampling.end_ids:
            self._end_ids[stream_id] = sampling.end_ids[0]

    def step(self) -> Sequence[Progress]:
        """What the runtime has made since the last time; empty if nothing, after a moment."""
        return [self._progress(news) for news in self._streams.take(_PATIENCE_SECONDS)]

    def cancel(self, stream_id: int) -> None:
        """Free the slot and the KV blocks of a sequence."""
        self._end_ids.pop(stream_id, None)
        self._streams.abort(stream_id)

    def kv_cache(self) -> KvCache:
        """As of the runtime's latest iteration; called from any thread."""
        stats = self._streams.kv_cache()
        if not stats:
            return KvCache()
        used, free = stats.get("usedNumBlocks", 0), stats.get("freeNumBlocks", 0)
        if self._streams.idle:  # blocks of the prefix cache are free
            used, free = 0, used + free
        return KvCache(used, free, stats.get("reusedBlocks"), stats.get("missedBlocks"))

    def close(self) -> None:
        """End everything; the library's processes stay without it."""
        self._streams.close()

    def _progress(self, news: News) -> Progress:
        ids, log_probs = news.token_ids, news.log_probs
        end_id = self._end_ids.pop(news.stream_id, None) if news.over else None
        if news.finish == "stop" and end_id is not None and not log_probs:
            ids = [*ids, end_id]  # of which they tell no log probability
        finish = _FINISH.get(news.finish or "", FinishReason.NONE)
        error = None
        if news.error or (news.finish and not finish):
            reason = news.error or f"its finish reason is `{news.finish}`"
            error = EngineFailedError(f"TensorRT-LLM gave the request up: {reason}")
        return Progress(news.stream_id, ids, finish, error, log_probs)

    def _spellings(self, word: bytes) -> Sequence[Sequence[int]]:
        text = word.decode("utf-8")
        spelled = [
            tuple(self._tokenizer.encode(variant, add_special_tokens=False).ids)
            for variant in (text, f" {text}")
        ]
        return list(dict.fromkeys(ids for ids in spelled if ids))


def sequence_limits(parameters: ModelParameters) -> SequenceLimits:
    """What a request is checked against; the runtime itself waits for KV blocks that are taken."""
    longest = parameters.integer("max_seq_len")
    return SequenceLimits(
        max_input_len=parameters.integer("max_input_len"),
        max_seq_len=longest,
        kv_tokens=int(parameters.record("kv_cache_config").get("max_tokens") or longest),
        vocab_size=parameters.integer("vocab_size"),
        eos_token_ids=parameters.integers("eos_token_ids"),
    )


class TritonPythonModel(EngineModel):
    """The tensors are described in backend.toml."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load 1/engine or 1/checkpoint and start the decoder loop."""
        with loading(args) as parameters, ExitStack() as undo:
            limits = sequence_limits(parameters)
            self._engine = TrtllmEngine(version_folder(args), parameters)
            undo.callback(self._engine.close)
            service = Service(
                self._engine,
                limits,
                # The runtime lines up what it has no slot for; a full line would not be quicker.
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

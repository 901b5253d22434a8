# SPDX-License-Identifier: Apache-2.0
"""LLM in its two kinds, and the executor thread behind it."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ._version import __version__
from .executor import EventQueue, LoRARequest, RequestOutput, Response, has_event_loop
from .llm_args import TORCH_ARGS, TRT_ARGS, KvCacheConfig, check_llm_arguments
from .numpy_llama import Array, NumpyLlama, Shape, State, read_lora, read_safetensors
from .sampler import Abilities, Chooser, LiteralGuide
from .sampling_params import SamplingParams

# A GPU's, at least: with none at all answers are over before anything can happen to them.
_ITERATION_SECONDS = 0.005
_ENGINE_NAMES = {
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_size",
    "rms_norm_eps": "norm_epsilon",
    "rope_theta": "rotary_base",
}


@dataclass
class _Active:
    output: RequestOutput
    chooser: Chooser
    state: State
    lora: dict[str, Array] | None
    aborted: bool = False
    pending: list[int] = field(default_factory=list)


class _Executor:
    """Advances every active request by one id per iteration, in a thread that must be ended.

    As with the real one, a process that forgets `shutdown` does not end.
    """

    def __init__(self, model: NumpyLlama, slots: int, *, keeps_eos: bool, block: int) -> None:
        self._model = model
        self._slots = slots
        self._keeps_eos = keeps_eos
        self._block = block
        self._changed = threading.Condition()
        self._waiting: list[_Active] = []
        self._active: dict[int, _Active] = {}
        self._ended = False
        self._blocks_seen: set[tuple[int, ...]] = set()
        self._reused = self._missed = 0
        self.stats: EventQueue | None = None
        self.iterations = 0
        self.thread = threading.Thread(target=self._run, name="executor")
        self.thread.start()

    def submit(self, active: _Active) -> None:
        """Line up."""
        with self._changed:
            self._waiting.append(active)
            self._changed.notify()

    def abort(self, request_id: int) -> None:
        """Mark; the next iteration ends it."""
        with self._changed:
            for active in [*self._active.values(), *self._waiting]:
                active.aborted |= active.output.request_id == request_id

    def shutdown(self) -> None:
        """End the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self.thread.join()

    @property
    def active(self) -> int:
        """Requests in a slot."""
        return len(self._active)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._active or self._ended)
                if self._ended:
                    return
                while self._waiting and len(self._active) < self._slots:
                    new = self._waiting.pop(0)
                    self._count_blocks(new.pending)
                    self._active[new.output.request_id] = new
                turn = list(self._active.values())
            time.sleep(_ITERATION_SECONDS)
            for active in turn:
                self._advance(active)
            self._tell_stats()

    def _advance(self, active: _Active) -> None:
        response = Response(finish_reason="cancelled") if active.aborted else self._next(active)
        if response.finish_reason or response.error:
            with self._changed:
                del self._active[active.output.request_id]
        active.output.queue.put(response)

    def _next(self, active: _Active) -> Response:
        params = active.output.sampling_params
        try:
            logits = self._model.read(active.state, active.pending, active.lora)
            token, log_prob = active.chooser.choose(logits)
        except (ValueError, RuntimeError) as error:
            return Response(error=f"Request failed: {error}")
        active.pending = [token]
        response = Response([token], [log_prob] if params.logprobs else [])
        if token == params.end_id and not params.ignore_eos:
            response.finish_reason = "stop"
            if not self._keeps_eos:
                response.token_ids, response.logprobs = [], []
        elif token in (params.stop_token_ids or ()):
            response.finish_reason, response.stopped_by = "stop", token
        elif len(active.chooser.made) >= params.max_tokens:
            response.finish_reason = "length"
        return response

    def _count_blocks(self, prompt: Sequence[int]) -> None:
        for end in range(self._block, len(prompt) + 1, self._block):
            block = tuple(prompt[:end])
            self._reused += block in self._blocks_seen
            self._missed += block not in self._blocks_seen
            self._blocks_seen.add(block)

    def _tell_stats(self) -> None:
        self.iterations += 1
        if self.stats is None:
            return
        lengths = [active.state.length for active in self._active.values()]
        used = sum(-(-length // self._block) for length in lengths)
        cache = {
            "maxNumBlocks": 1000,
            "freeNumBlocks": 1000 - used,
            "usedNumBlocks": used,
            "tokensPerBlock": self._block,
            "reusedBlocks": self._reused,
            "missedBlocks": self._missed,
        }
        self.stats.put({"iter": self.iterations, "kvCacheStats": cache})


class _Stats:
    """IterationResult: ends when there was nothing for `timeout` seconds."""

    def __init__(self, queue: EventQueue | None, timeout: float) -> None:
        self._queue = queue
        self._timeout = timeout

    def __aiter__(self) -> _Stats:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self._queue is None:
            raise StopAsyncIteration
        try:
            record: dict[str, Any] = await self._queue.get(self._timeout)
        except TimeoutError:
            raise StopAsyncIteration from None
        return record


class BaseLLM:
    """What both kinds share."""

    ARGS: frozenset[str] | set[str] = frozenset()
    BACKEND: str | None = None
    loaded: list[BaseLLM] = []  # for tests: every one that was made

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        for key in kwargs:
            if key not in self.ARGS:
                raise ValueError(f"LLM got invalid argument: {key}")
        check_llm_arguments(kwargs, self.BACKEND)
        self.kwargs = kwargs | {"tensor_parallel_size": tensor_parallel_size}
        self._executor: _Executor | None = None
        self._folder = Path(model)
        self.tokenizer = None if skip_tokenizer_init else _tokenizer(Path(tokenizer or model))
        guided = kwargs.get("guided_decoding_backend")
        if guided and self.tokenizer is None:
            raise ValueError("guided decoding needs the tokenizer")
        if guided == "llguidance" and self.BACKEND is None:
            raise ValueError(f"Unsupported guided decoding backend {guided}")
        self._ids = itertools.count(1)
        self._kv: KvCacheConfig = kwargs.get("kv_cache_config") or KvCacheConfig()
        self._shared = np.random.default_rng(42)
        self._model = self._load()
        self._executor = _Executor(
            self._model,
            kwargs.get("max_batch_size") or 2048,
            keeps_eos=self.BACKEND is not None,
            block=self._kv.tokens_per_block,
        )
        self.loaded.append(self)

    def _load(self) -> NumpyLlama:
        raise NotImplementedError

    def _check_arguments(self, prompt: int, params: SamplingParams) -> None:
        raise NotImplementedError

    @property
    def _abilities(self) -> Abilities:
        return Abilities()

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Begin a request. Its result belongs to the event loop that runs, if one does."""
        if self._executor is None:
            raise RuntimeError("LLM is shutting down")
        params = sampling_params or SamplingParams()
        if not isinstance(params, SamplingParams):
            raise TypeError(f"The sampling_params must be type SamplingParams, not {type(params)}")
        if params.end_id is None and self.tokenizer is None:
            raise ValueError(
                "tokenizer is required to reset end_id if it is None, or you can explicitly "
                "specify the end_id for sampling_params"
            )
        if not isinstance(inputs, list) or not all(type(token) is int for token in inputs):
            raise TypeError(f"The inputs must be type str or list of int, but got {type(inputs)}")
        if not streaming:
            raise NotImplementedError("the stand-in streams only")
        self._check_arguments(len(inputs), params)
        chooser = Chooser(params, inputs, self._abilities, self._shared, self._guide(params))
        output = RequestOutput._of(next(self._ids), inputs, params, self._executor.abort)
        if self._executor.stats is None and has_event_loop() and self._has_stats:
            self._executor.stats = EventQueue()
        state = self._model.new_state()
        lora = self._lora(lora_request)
        self._executor.submit(_Active(output, chooser, state, lora, pending=list(inputs)))
        return output

    @property
    def _has_stats(self) -> bool:
        return True

    def _guide(self, params: SamplingParams) -> LiteralGuide | None:
        if params.guided_decoding is None or not self.kwargs.get("guided_decoding_backend"):
            return None  # the real one does not look at it either
        assert self.tokenizer is not None
        return LiteralGuide(params.guided_decoding, self.tokenizer, 1)

    def _lora(self, request: LoRARequest | None) -> dict[str, Array] | None:
        if request is None:
            return None
        if not self.kwargs.get("enable_lora"):
            raise RuntimeError("LoRA is not enabled")
        self._check_rank(Path(request.lora_path))
        return read_lora(Path(request.lora_path))

    def _check_rank(self, adapter: Path) -> None:
        """Engines were compiled for a rank, which the stand-in's do not tell."""

    def get_stats_async(self, timeout: float | None = 2) -> _Stats:
        """Iteration statistics, from the first request on."""
        queue = None if self._executor is None else self._executor.stats
        return _Stats(queue, 2 if timeout is None else timeout)

    def shutdown(self) -> None:
        """End the executor; without it the process stays."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


class TrtLLM(BaseLLM):
    """tensorrt_llm._tensorrt_engine.LLM over an engine folder."""

    ARGS = TRT_ARGS

    def _load(self) -> NumpyLlama:
        config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        if config["version"] != __version__:
            raise RuntimeError("Serialization assertion stdVersionRead == kSERIALIZATION_VERSION")
        world = config["pretrained_config"]["mapping"]["world_size"]
        given = self.kwargs["tensor_parallel_size"] * self.kwargs.get("pipeline_parallel_size", 1)
        if given not in {1, world}:
            raise ValueError(f"the engine is of {world} ranks, {given} were asked for")
        self._built = config["build_config"]
        own = config["pretrained_config"]
        shape = Shape.of({name: own[theirs] for name, theirs in _ENGINE_NAMES.items()})
        return NumpyLlama(read_safetensors(self._folder / "rank0.engine"), shape)

    def _check_arguments(self, prompt: int, params: SamplingParams) -> None:
        longest = self._built["max_seq_len"]
        if prompt + params.max_tokens > longest:
            raise ValueError(f"prompt length ({prompt}) and max_tokens should not exceed {longest}")
        if params.logprobs and not self.kwargs.get("gather_generation_logits"):
            raise ValueError(
                f"`sampling_params.logprobs={params.logprobs}` requires "
                "`gather_generation_logits=True` to be passed to the `LLM()` constructor."
            )
        if params.top_k and params.top_k > 1024:
            raise ValueError("the stand-in takes no top_k that the real kernels would cut")


class TorchLLM(BaseLLM):
    """tensorrt_llm.LLM over a Hugging Face checkpoint."""

    ARGS = TORCH_ARGS
    BACKEND = "pytorch"

    def _load(self) -> NumpyLlama:
        lora = self.kwargs.get("lora_config")
        if lora is not None and len(lora.lora_dir) != 1:
            assert lora.lora_target_modules, "Expecting at least one lora target module"
        config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        weights = read_safetensors(self._folder / "model.safetensors")
        return NumpyLlama(weights, Shape.of(config))

    def _check_rank(self, adapter: Path) -> None:
        rank = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["r"]
        if rank > self.kwargs["lora_config"].max_lora_rank:
            raise RuntimeError(f"the adapter's rank {rank} is above max_lora_rank")

    @property
    def _abilities(self) -> Abilities:
        complete = self.kwargs.get("sampler_type") == "TRTLLMSampler" or _candidate() >= 29
        return Abilities(penalties=complete, seed=complete, min_p=complete, bad_words=complete)

    @property
    def _has_stats(self) -> bool:
        return bool(self.kwargs.get("enable_iter_perf_stats"))

    def _check_arguments(self, prompt: int, params: SamplingParams) -> None:
        limit = self.kwargs.get("max_num_tokens") or 8192
        if prompt > limit and not self.kwargs.get("enable_chunked_prefill"):
            raise ValueError(f"prompt length ({prompt}) should not exceed max_num_tokens ({limit})")


def _candidate() -> int:
    """The number of a release candidate of 1.3.0; 0 before."""
    found = re.fullmatch(r"1\.3\.0rc(\d+)", __version__)
    return int(found[1]) if found else 0


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / "tokenizer_config.json").is_file():
        raise OSError(f"{folder} has no tokenizer_config.json")
    return Tokenizer.from_file(str(folder / "tokenizer.json"))

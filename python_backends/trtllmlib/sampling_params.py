# SPDX-License-Identifier: Apache-2.0
"""Our sampling contract in the words of TensorRT-LLM's SamplingParams, and what is refused.

https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html
"""

import importlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from textlib.errors import RequestError
from textlib.request_tensors import GenerationRequest, Guide
from textlib.sampling import SamplingParams
from trtllmlib.runtime import ENGINE, Runtime

_SEED_BITS = 64
# The C++ sampler's kernels go no further; it would cut a larger one down to this.
_MAX_TOP_K = 1024
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

EncodeWord = Callable[[bytes], Sequence[Sequence[int]]]


class SamplingTranslator:
    """`eos_token_ids`: of the model. `encode_word`: the id sequences that spell a text."""

    def __init__(
        self, runtime: Runtime, eos_token_ids: Sequence[int], encode_word: EncodeWord
    ) -> None:
        self._runtime = runtime
        self._eos_token_ids = eos_token_ids
        self._encode_word = encode_word
        self._llmapi = importlib.import_module("tensorrt_llm.llmapi")

    def translate(self, request: GenerationRequest) -> Any:
        """TensorRT-LLM's SamplingParams; raises RequestError naming the tensor."""
        self._check(request)
        sampling = request.sampling
        settings = (
            {"max_tokens": sampling.max_tokens, "detokenize": False}
            | self._ends(request)
            | _choice(sampling, request.resumed)
            | {name: getattr(sampling, name) for name in _given_penalties(sampling)}
        )
        if sampling.log_probs:
            settings["logprobs"] = 1  # that of the chosen id comes with it
        if request.guide:
            settings["guided_decoding"] = self._guided(request.guide)
        made = self._llmapi.SamplingParams(**settings)
        if request.bad_words:
            self._forbid(made, request.bad_words)
        return made

    def _check(self, request: GenerationRequest) -> None:
        runtime, sampling = self._runtime, request.sampling
        for name in _given_penalties(sampling):
            self._require(runtime.penalties, name)
        self._require(runtime.bad_words or not request.bad_words, "bad_words")
        sampled = not sampling.greedy
        self._require(runtime.seed or not sampled or sampling.seed is None, "random_seed")
        if sampling.log_probs and not runtime.log_probs:
            raise RequestError(
                "return_log_probs: the engine is served without its logits. Set "
                "serving.runtime.gather_generation_logits to true and render again, or leave "
                "return_log_probs out."
            )
        if sampled and runtime.world == ENGINE and sampling.top_k > _MAX_TOP_K:
            raise RequestError(
                f"top_k is {sampling.top_k}, TensorRT-LLM's engines take at most {_MAX_TOP_K}."
            )
        if sampling.min_tokens and len(sampling.end_ids) > 1:
            raise RequestError(
                f"min_tokens: TensorRT-LLM holds back one end id only, and here are "
                f"{len(sampling.end_ids)}. Send end_id with a single one."
            )
        self._check_guide(request)

    def _require(self, honoured: bool, name: str) -> None:
        if not honoured:
            raise RequestError(
                f"{name}: the PyTorch runtime of TensorRT-LLM {self._runtime.version} ignores it. "
                "Leave it out, or serve with a later release."
            )

    def _check_guide(self, request: GenerationRequest) -> None:
        if request.guide is None:
            return
        if not self._runtime.guided:
            raise RequestError(
                "guided_decoding_guide_type: the engine is served without guided decoding. Set "
                "serving.runtime.guided_decoding_backend to xgrammar and render again."
            )
        if request.resumed:
            raise RequestError(
                "guided_decoding_guide_type: a guide begins with the answer, it cannot go on "
                "after resume_ids. Send the request without them, for a new answer."
            )

    def _ends(self, request: GenerationRequest) -> dict[str, Any]:
        """How the answer ends: by ids of which the last one is part of it, in both worlds alike.

        `end_id` does not suffice: engines leave it out of the answer, and take only one.
        """
        sampling = request.sampling
        ends = list(sampling.end_ids)
        if request.guide:  # a guide that is through leaves nothing else to generate
            ends = list(dict.fromkeys([*ends, *self._eos_token_ids]))
        # Without a tokenizer an end id is obligatory; ignore_eos then takes it away again.
        settings: dict[str, Any] = {"end_id": ends[0] if ends else 0}
        if sampling.min_tokens and ends:
            return settings | {"min_tokens": sampling.min_tokens}
        settings |= {"ignore_eos": True, "include_stop_str_in_output": True}
        return settings | ({"stop_token_ids": ends} if ends else {})

    def _guided(self, guide: Guide) -> Any:
        named: dict[str, dict[str, Any]] = {
            "json": {"json_object": True},
            "json_schema": {"json": guide.text},
            "regex": {"regex": guide.text},
            "ebnf_grammar": {"grammar": guide.text},
        }
        return self._llmapi.GuidedDecodingParams(**named[guide.kind])

    def _forbid(self, made: Any, words: Sequence[bytes]) -> None:
        """Ids that spell a bad word, in front of which a space may be, must not come in a row."""
        spellings = [list(ids) for word in words for ids in self._encode_word(word)]
        made.bad_token_ids = [ids[0] for ids in spellings if len(ids) == 1] or None
        longer = [ids for ids in spellings if len(ids) > 1]
        if longer:
            # Public only as text for its own tokenizer, which this LLM lacks.
            made.bad = [word.decode() for word in words]
            made._bad_word_ids = longer


def _given_penalties(sampling: SamplingParams) -> list[str]:
    return [name for name, off in _PENALTIES.items() if getattr(sampling, name) != off]


def _choice(sampling: SamplingParams, resumed: int) -> dict[str, Any]:
    if sampling.greedy:
        return {"top_k": 1}
    seed = secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        # The same numbers must not be drawn again after what another server made. The
        # library's default would repeat one sample.
        "seed": (seed + resumed) % (1 << _SEED_BITS),
    }

# SPDX-License-Identifier: Apache-2.0
"""Translate sampling parameters into TensorRT-LLM's SamplingParams, or reject them.

https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html
"""

import importlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from textlib.errors import RequestError
from textlib.triton.request_tensors import GenerationRequest, GuideSpec
from textlib.triton.sampling import SamplingParams
from trtllmlib.runtime import ENGINE, TrtllmRuntime

_SEED_BITS = 64
# The limit of the C++ sampler's kernels; it silently reduces a larger value.
_MAX_TOP_K = 1024
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

EncodeWord = Callable[[bytes], Sequence[Sequence[int]]]


class SamplingTranslator:
    """Translates the sampling parameters of requests.

    eos_token_ids: of the model. encode_word: returns the id sequences that spell a text.
    """

    def __init__(
        self, runtime: TrtllmRuntime, eos_token_ids: Sequence[int], encode_word: EncodeWord
    ) -> None:
        self._runtime = runtime
        self._eos_token_ids = eos_token_ids
        self._encode_word = encode_word
        self._llmapi = importlib.import_module("tensorrt_llm.llmapi")

    def translate(self, request: GenerationRequest) -> Any:
        """Create TensorRT-LLM's SamplingParams; raises RequestError with the tensor's name."""
        self._check(request)
        sampling = request.sampling
        settings = (
            {"max_tokens": sampling.max_tokens, "detokenize": False}
            | self._end_settings(request)
            | _sampling_settings(sampling, request.num_resumed_ids)
            | {name: getattr(sampling, name) for name in _active_penalties(sampling)}
        )
        if sampling.log_probs:
            settings["logprobs"] = 1  # includes the chosen id
        if request.guide:
            settings["guided_decoding"] = self._guided_decoding(request.guide)
        params = self._llmapi.SamplingParams(**settings)
        if request.bad_words:
            self._set_bad_words(params, request.bad_words)
        return params

    def _check(self, request: GenerationRequest) -> None:
        runtime, sampling = self._runtime, request.sampling
        for name in _active_penalties(sampling):
            self._require(runtime.penalties, name)
        self._require(runtime.bad_words or not request.bad_words, "bad_words")
        sampled = not sampling.greedy
        self._require(runtime.seed or not sampled or sampling.seed is None, "random_seed")
        self._require(runtime.min_p or not sampled or not sampling.min_p, "min_p")
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
                f"min_tokens: TensorRT-LLM can suppress one end id, but the request has "
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
        if request.num_resumed_ids:
            raise RequestError(
                "guided_decoding_guide_type: a guide starts with the answer and cannot continue "
                "after resume_ids. Send the request without them, for a new answer."
            )

    def _end_settings(self, request: GenerationRequest) -> dict[str, Any]:
        """Return the settings for end ids; in both worlds the answer includes its end id.

        `end_id` is not enough: engines omit it from the answer and accept only one.
        """
        sampling = request.sampling
        end_ids = list(sampling.end_ids)
        if request.guide:  # after a complete guide only an end token may come
            end_ids = list(dict.fromkeys([*end_ids, *self._eos_token_ids]))
        # Without a tokenizer an end id is required; ignore_eos disables it again.
        settings: dict[str, Any] = {"end_id": end_ids[0] if end_ids else 0}
        if sampling.min_tokens and end_ids:
            return settings | {"min_tokens": sampling.min_tokens}
        settings |= {"ignore_eos": True, "include_stop_str_in_output": True}
        return settings | ({"stop_token_ids": end_ids} if end_ids else {})

    def _guided_decoding(self, guide: GuideSpec) -> Any:
        arguments_by_kind: dict[str, dict[str, Any]] = {
            "json": {"json_object": True},
            "json_schema": {"json": guide.text},
            "regex": {"regex": guide.text},
            "ebnf_grammar": {"grammar": guide.text},
        }
        return self._llmapi.GuidedDecodingParams(**arguments_by_kind[guide.kind])

    def _set_bad_words(self, params: Any, words: Sequence[bytes]) -> None:
        """Forbid the id sequences that spell a bad word, with and without a leading space."""
        spellings = [list(ids) for word in words for ids in self._encode_word(word)]
        params.bad_token_ids = [ids[0] for ids in spellings if len(ids) == 1] or None
        longer = [ids for ids in spellings if len(ids) > 1]
        if longer:
            # The public API takes only text for the LLM's tokenizer, which this LLM lacks.
            params.bad = [word.decode() for word in words]
            params._bad_word_ids = longer


def _active_penalties(sampling: SamplingParams) -> list[str]:
    return [name for name, off in _PENALTIES.items() if getattr(sampling, name) != off]


def _sampling_settings(sampling: SamplingParams, resumed: int) -> dict[str, Any]:
    if sampling.greedy:
        return {"top_k": 1}
    seed = secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        # The sampler must not repeat the random numbers of another server's part. The
        # library's default would repeat one sample.
        "seed": (seed + resumed) % (1 << _SEED_BITS),
    }

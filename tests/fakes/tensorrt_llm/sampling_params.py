# SPDX-License-Identifier: Apache-2.0
"""SamplingParams and GuidedDecodingParams: fields, defaults and checks of releases 1.2 and 1.3."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any

from ._table import TABLE, present, since


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    """At most one of them; `json` is a schema."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def _validate(self) -> None:
        given = [item.name for item in fields(self) if getattr(self, item.name)]
        if len(given) > 1:
            raise ValueError(f"Only one guide can be used for a request, but got {len(given)}.")


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """A slotted dataclass: unknown names are TypeErrors here and AttributeErrors later."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    _bad_word_ids: list[list[int]] | None = field(default=None, init=False, repr=False)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    _stop_word_ids: list[list[int]] | None = field(default=None, init=False, repr=False)
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: list[Any] | None = None
    lookahead_config: Any = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        """The library's own checks."""
        if self.pad_id is None:
            self.pad_id = self.end_id
        self.best_of = self.best_of or self.n
        self._validate()

    def _validate(self) -> None:
        for name, bounds in TABLE["sampling"].items():
            value = getattr(self, name)
            if value is None or not present(bounds):
                continue
            if value < bounds["least"] or value > bounds.get("most", value):
                raise ValueError(f"{name}={value} is out of range: {bounds}")
        assert self.best_of is not None
        if self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) cannot be less than n ({self.n})")
        allowed = os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING")
        if self.best_of > 1 and self._greedy_decoding and not allowed:
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")
        if self.guided_decoding is not None:
            self.guided_decoding._validate()

    def _get_bad_words(self) -> list[list[int]]:
        words = [[token] for token in self.bad_token_ids or ()]
        if self.bad is None:
            return words
        if self._bad_word_ids is None:
            raise RuntimeError(
                f"SamplingParams.bad ({self.bad}) is not processed by tokenizer, please call the "
                "setup method."
            )
        return words + self._bad_word_ids

    @property
    def _greedy_decoding(self) -> bool:
        if self.use_beam_search:
            return False
        if not since("1.3.0rc0"):
            return self.top_k in (None, 1) and self.top_p in (None, 0.0)
        unset = self.temperature is None and self.top_p is None and self.top_k is None
        return unset or self.top_k == 1 or self.top_p == 0.0 or self.temperature == 0

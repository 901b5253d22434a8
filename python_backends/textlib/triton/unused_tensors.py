# SPDX-License-Identifier: Apache-2.0
"""Tensors of NVIDIA's `ensemble` that our engines do not use.

NVIDIA's clients send many of them with every request. Values that change nothing are accepted. Any
other value is rejected, because an answer that ignores a parameter looks like one that honours it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from textlib.errors import RequestError


@dataclass(frozen=True, slots=True)
class NeutralValues:
    """The values of a tensor that change nothing; an empty tensor is always accepted."""

    values: tuple[Any, ...] | None  # each element must be one of them; None: any value
    instead: str = ""  # why another value is rejected, and what the client can do


_NO_BEAMS = "There is no beam search; use temperature, top_k and top_p"
_NO_LOGITS = "Logits are not returned; return_log_probs gives those of the generated tokens"
_NO_TABLE = "Prompt embeddings are not supported; send text"
_NO_BIAS = "Words cannot be biased; bad_words keeps them out, where the engine can"
_NO_WEIGHTS = "Requests cannot bring adapters; lora_name selects one, where the engine has any"

NEUTRAL: Mapping[str, NeutralValues] = {
    "decoder_text_input": NeutralValues(
        (b"",), "The model has no encoder; send all text in text_input"
    ),
    "num_return_sequences": NeutralValues(
        (1,), "One request has one answer; send it again for another"
    ),
    "beam_width": NeutralValues((1,), _NO_BEAMS),
    # 0 is off in TensorRT-LLM, 1 is off elsewhere.
    "length_penalty": NeutralValues((0.0, 1.0), _NO_BEAMS),
    # Ends beam search earlier; there is no beam search.
    "early_stopping": NeutralValues(None),
    # Fills up short answers of a batch; here each answer has its own response.
    "pad_id": NeutralValues(None),
    # Every response has num_input_tokens and num_output_tokens.
    "return_num_input_tokens": NeutralValues(None),
    "return_num_output_tokens": NeutralValues(None),
    "return_context_logits": NeutralValues((False,), _NO_LOGITS),
    "return_generation_logits": NeutralValues((False,), _NO_LOGITS),
    "return_perf_metrics": NeutralValues(
        (False,), "The server's /metrics has the engine's figures"
    ),
    "embedding_bias_words": NeutralValues((b"",), _NO_BIAS),
    "embedding_bias_weights": NeutralValues((0.0,), _NO_BIAS),
    "prompt_embedding_table": NeutralValues((), _NO_TABLE),
    "prompt_table_extra_id": NeutralValues((0,), _NO_TABLE),
    "prompt_vocab_size": NeutralValues((0,), _NO_TABLE),
    "lora_task_id": NeutralValues((0,), _NO_WEIGHTS),
    "lora_weights": NeutralValues((), _NO_WEIGHTS),
    "lora_config": NeutralValues((), _NO_WEIGHTS),
}


def check_neutral(tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise RequestError for a tensor whose value requests an unsupported feature."""
    for name, array in tensors.items():
        neutral = NEUTRAL.get(name)
        if neutral is None or neutral.values is None:
            continue
        for value in array.reshape(-1).tolist():
            if value not in neutral.values:
                raise RequestError(_rejection_message(name, value, neutral))


def _rejection_message(name: str, value: Any, neutral: NeutralValues) -> str:
    if not neutral.values:
        return f"{name} has values, expected none. {neutral.instead}."
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    actual = f"'{text:.40}'" if isinstance(text, str) else str(text)
    accepted = " or ".join(str(each) for each in neutral.values if each != b"")
    return f"{name} is {actual}, expected {accepted or 'no text'}. {neutral.instead}."

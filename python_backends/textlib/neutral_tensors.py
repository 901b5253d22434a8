# SPDX-License-Identifier: Apache-2.0
"""Tensors that NVIDIA's `ensemble` takes and our engines have no use for.

NVIDIA's clients send many of them with every request. The values that change nothing are taken;
any other is refused, because an answer that ignores a parameter looks like one that honours it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from textlib.errors import RequestError


@dataclass(frozen=True, slots=True)
class Neutral:
    """values: each element must be one of them, None: any will do; an empty tensor always is fine.

    instead: why another value is refused, and what the client can do.
    """

    values: tuple[Any, ...] | None
    instead: str = ""


_NO_BEAMS = "There is no beam search; use temperature, top_k and top_p"
_NO_LOGITS = "Logits are not returned; return_log_probs gives those of the generated tokens"
_NO_TABLE = "Prompt embeddings are not supported; send text"
_NO_BIAS = "Words cannot be biased; bad_words keeps them out, where the engine can"
_NO_WEIGHTS = "Requests cannot bring adapters; lora_name selects one, where the engine has any"

NEUTRAL: Mapping[str, Neutral] = {
    "decoder_text_input": Neutral((b"",), "The model has no encoder; send all text in text_input"),
    "num_return_sequences": Neutral((1,), "One request has one answer; send it again for another"),
    "beam_width": Neutral((1,), _NO_BEAMS),
    # Off for TensorRT-LLM, and off for everyone else.
    "length_penalty": Neutral((0.0, 1.0), _NO_BEAMS),
    # Ends beam search earlier, of which there is none.
    "early_stopping": Neutral(None),
    # Fills up short answers of a batch; here each answer has its own response.
    "pad_id": Neutral(None),
    # num_input_tokens and num_output_tokens are there for every request.
    "return_num_input_tokens": Neutral(None),
    "return_num_output_tokens": Neutral(None),
    "return_context_logits": Neutral((False,), _NO_LOGITS),
    "return_generation_logits": Neutral((False,), _NO_LOGITS),
    "return_perf_metrics": Neutral((False,), "The server's /metrics has the engine's figures"),
    "embedding_bias_words": Neutral((b"",), _NO_BIAS),
    "embedding_bias_weights": Neutral((0.0,), _NO_BIAS),
    "prompt_embedding_table": Neutral((), _NO_TABLE),
    "prompt_table_extra_id": Neutral((0,), _NO_TABLE),
    "prompt_vocab_size": Neutral((0,), _NO_TABLE),
    "lora_task_id": Neutral((0,), _NO_WEIGHTS),
    "lora_weights": Neutral((), _NO_WEIGHTS),
    "lora_config": Neutral((), _NO_WEIGHTS),
}


def check_neutral(tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raises RequestError for a tensor of a request that asks for what no engine does."""
    for name, array in tensors.items():
        neutral = NEUTRAL.get(name)
        if neutral is None or neutral.values is None:
            continue
        for value in array.reshape(-1).tolist():
            if value not in neutral.values:
                raise RequestError(_refusal(name, value, neutral))


def _refusal(name: str, value: Any, neutral: Neutral) -> str:
    if not neutral.values:
        return f"{name} has values, expected none. {neutral.instead}."
    shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    given = f"'{shown:.40}'" if isinstance(shown, str) else str(shown)
    taken = " or ".join(str(each) for each in neutral.values if each != b"")
    return f"{name} is {given}, expected {taken or 'no text'}. {neutral.instead}."

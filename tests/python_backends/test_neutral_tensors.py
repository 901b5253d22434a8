# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's clients send besides: taken where it changes nothing, refused by name elsewhere."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from textlib.errors import RequestError
from textlib.triton.unused_tensors import NEUTRAL, check_neutral

from tritonctl.repository.ensembles import ensemble_for

CHECKOUT = Path(__file__).parents[2]
# Every input that NVIDIA's `ensemble` declares (TensorRT-LLM 1.2).
NVIDIA = {
    *("text_input", "decoder_text_input", "max_tokens", "num_return_sequences", "bad_words"),
    *("stop_words", "exclude_input_in_output", "end_id", "pad_id", "top_k", "top_p"),
    *("temperature", "length_penalty", "repetition_penalty", "min_tokens", "presence_penalty"),
    *("frequency_penalty", "seed", "return_log_probs", "return_context_logits"),
    *("return_generation_logits", "return_perf_metrics", "return_num_input_tokens"),
    *("return_num_output_tokens", "beam_width", "stream", "prompt_embedding_table"),
    *("prompt_table_extra_id", "prompt_vocab_size", "embedding_bias_words"),
    *("embedding_bias_weights", "lora_task_id", "lora_weights", "lora_config"),
    *("guided_decoding_guide_type", "guided_decoding_guide"),
}

PROMPTS = ("text_input", "messages", "prompt_ids")


def test_the_ensemble_declares_every_tensor_of_nvidias() -> None:
    """And the tokenizer reads every tensor of the table, and no other of NVIDIA's."""
    ensemble, _ = ensemble_for("text_generation")
    assert {tensor.name for tensor in ensemble.inputs} >= NVIDIA
    assert ensemble.steps["tokenizer"].inputs.keys() == {*NEUTRAL, *PROMPTS}
    backend = CHECKOUT / "python_backends" / "tokenizer" / "backend.toml"
    declared = tomllib.loads(backend.read_text(encoding="utf-8"))["inputs"]
    assert {item["name"] for item in declared} == {*NEUTRAL, *PROMPTS}


@pytest.mark.parametrize("name", NEUTRAL)
def test_values_that_change_nothing_are_taken(name: str) -> None:
    """Each of the table, and always an empty tensor."""
    values = NEUTRAL[name].values
    for value in (5, True) if values is None else values:
        check_neutral({name: np.array([[value]])})
    check_neutral({name: np.zeros((1, 0))})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("beam_width", np.int32(4), r"^beam_width is 4, expected 1\. There is no beam search; use"),
        ("length_penalty", np.float32(0.5), r"length_penalty is 0.5, expected 0.0 or 1.0\."),
        ("length_penalty", np.float32(np.nan), "length_penalty is nan"),
        ("return_perf_metrics", np.True_, "return_perf_metrics is True, expected False"),
        ("decoder_text_input", "七".encode(), "decoder_text_input is '七', expected no text"),
        ("embedding_bias_words", b"\xff", "embedding_bias_words is '\ufffd', expected no text"),
        ("lora_weights", np.float16(0), "lora_weights has values, expected none. Requests cannot"),
    ],
)
def test_other_values_are_refused_by_name(name: str, value: Any, said: str) -> None:
    """With what is taken instead."""
    dtype = np.object_ if isinstance(value, bytes) else None
    with pytest.raises(RequestError, match=said):
        check_neutral({name: np.array([[value]], dtype=dtype)})

# SPDX-License-Identifier: Apache-2.0
"""Defaults, limits and error texts of the public request tensors."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from textlib.errors import RequestError
from textlib.triton.request_tensors import (
    PUBLIC_NAMES,
    GenerationRequest,
    GuideSpec,
    SequenceLimits,
    read_generation_request,
)
from textlib.triton.sampling import SamplingParams
from textlib.triton.sampling_table import PARAMETERS

from tritonctl.repository.backends import backend_named

LIMITS = SequenceLimits(
    max_input_len=10, max_seq_len=16, kv_tokens=64, vocab_size=100, eos_token_ids=(2, 3)
)
ENGINE_NAMES = {public: name for name, public in PUBLIC_NAMES.items()}


def read(
    prompt: list[int] | None = None, limits: SequenceLimits = LIMITS, **public: Any
) -> GenerationRequest:
    """Read a request given by public tensor names."""
    ids = [5, 6, 7] if prompt is None else prompt
    tensors: dict[str, NDArray[Any]] = {
        "input_ids": np.array([ids], dtype=np.int32),
        "input_lengths": np.array([[len(ids)]], dtype=np.int32),
    }
    for name, value in public.items():
        words = name.endswith("_words")
        tensors[ENGINE_NAMES[name]] = np.array([[value]], dtype=np.object_ if words else None)
    return read_generation_request(tensors.get, limits)


def test_defaults() -> None:
    """Greedy, not streamed, up to max_seq_len, with the model's end tokens."""
    request = read()

    assert request.token_ids.tolist() == [5, 6, 7]
    assert not request.streaming
    assert request.sampling.greedy
    assert request.sampling.max_tokens == 13
    assert request.sampling.end_ids == (2, 3)
    assert request.sampling.seed is None


@pytest.mark.parametrize(
    ("given", "greedy"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 0.7}, False),
        ({"top_k": 0}, True),
        ({"top_k": 1}, True),
        ({"top_k": 2}, False),
        ({"top_p": 1.0}, True),
        ({"top_p": 0.9}, False),
        ({"min_p": 0.0}, True),
        ({"min_p": 0.1}, False),
        ({"temperature": 1.0, "min_p": 1.0}, True),
        ({"temperature": 0.0, "top_k": 5, "top_p": 0.5}, True),
        ({"temperature": 1.0, "top_k": 1}, True),
        ({"temperature": 1.0, "top_p": 1.0}, False),
        ({"temperature": 1.0, "top_p": 0.0}, True),
        ({"temperature": 1.0, "top_k": 5, "top_p": 0.0}, False),
        ({"random_seed": 7}, True),
    ],
)
def test_greedy_unless_sampling_is_asked_for(given: dict[str, Any], greedy: bool) -> None:
    """Temperature 0 and top_k 1 win over everything else."""
    assert read(**given).sampling.greedy is greedy


def test_sampling_values_arrive() -> None:
    """Every tensor reaches its field; temperature defaults to 1 when only top_p is given."""
    sampling = read(
        top_k=5,
        top_p=0.5,
        min_p=0.25,
        repetition_penalty=1.25,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        random_seed=np.uint64(2**64 - 1),
        max_tokens=4,
        end_id=9,
    ).sampling

    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 5, 0.5)
    assert sampling.min_p == 0.25
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.25, -2.0)
    assert (sampling.frequency_penalty, sampling.seed) == (2.0, 2**64 - 1)
    assert (sampling.max_tokens, sampling.end_ids) == (4, (9,))


def test_streaming_flag() -> None:
    """`stream` decides how often the client hears from us."""
    assert read(stream=True).streaming


def test_no_end_token() -> None:
    """end_id -1 runs to the length limit, which load tests need."""
    assert read(end_id=-1).sampling.end_ids == ()


def test_several_end_tokens() -> None:
    """Models with more than one, such as Llama 3."""
    assert read(end_id=[7, 0, 99]).sampling.end_ids == (7, 0, 99)


def test_words_and_options() -> None:
    """Words arrive once each; the options are off unless asked for."""
    request = read(stop_words=[b"a", b"b", b"a"], bad_words=[b"c"])
    assert (request.stop_words, request.bad_words) == ((b"a", b"b"), (b"c",))
    assert not any([request.include_stop_word, request.echo_prompt, request.sampling.log_probs])

    asked = read(include_stop_word=True, exclude_input_in_output=False, return_log_probs=True)
    assert asked.include_stop_word
    assert asked.echo_prompt
    assert not read(stream=True, exclude_input_in_output=False).echo_prompt
    assert asked.sampling.log_probs
    assert not read(exclude_input_in_output=True).echo_prompt


def test_one_empty_word_means_none() -> None:
    """NVIDIA's documented curl sends "stop_words": "" and "bad_words": ""."""
    request = read(stop_words=[b""], bad_words=[b""])
    assert (request.stop_words, request.bad_words) == ((), ())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, expected at least 1"),
        ({"max_tokens": -3}, "max_tokens is -3"),
        ({"max_tokens": 14}, r"max_tokens is 14 .* 3 tokens, but .* 16 \(max_seq_len\).*most 13"),
        ({"temperature": -0.1}, "temperature is -0.1, expected 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": -0.1}, "top_p is -0.1, expected from 0 to 1"),
        ({"seed": 1, "random_seed": 2}, "seed is 1 and random_seed is 2: two names of one value"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"min_p": 1.5}, "min_p is 1.5, expected from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5, expected from -2 to 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty is -2.5"),
        ({"end_id": 100}, "end_id is 100, expected a token id from 0 to 99"),
        ({"end_id": -2}, "end_id is -2"),
        ({"end_id": [1, -1]}, "end_id is -1, expected .* alone for none"),
        ({"end_id": [1] * 65}, "end_id has 65 ids"),
        ({"min_tokens": 14}, "min_tokens is 14, expected from 0 to 13"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"stop_words": [b"a", b""]}, r"stop_words\[1\] is empty"),
        ({"stop_words": [b"a"] * 65}, "stop_words has 65 words, expected at most 64"),
        ({"stop_words": [b"a" * 257]}, r"stop_words\[0\] has 257 bytes, expected at most 256"),
        ({"stop_words": [b"\xff"]}, r"stop_words\[0\] is not UTF-8"),
        ({"bad_words": [b""] * 2}, r"bad_words\[0\] is empty"),
        ({"include_stop_word": [True, False]}, "include_stop_word has shape"),
        ({"max_tokens": [1, 2]}, r"max_tokens has shape \[1, 1, 2\]"),
        ({"prompt": []}, "text_input is empty"),
        ({"prompt": [1] * 11}, r"text_input has 11 tokens, the limit is 10 \(max_input_len\)"),
        ({"prompt": [100]}, "the model has 0 to 99"),
        ({"prompt": [-1]}, "ids from -1"),
    ],
)
def test_refusals_name_the_public_tensor(given: dict[str, Any], message: str) -> None:
    """Name, value and limit: enough to repair the request without reading our source."""
    with pytest.raises(RequestError, match=message):
        read(**given)


def test_a_small_kv_cache_is_the_limit() -> None:
    """A request that can never fit is refused; without max_tokens it is cut to what fits."""
    small = SequenceLimits(
        max_input_len=10, max_seq_len=16, kv_tokens=8, vocab_size=100, eos_token_ids=()
    )

    assert read(limits=small).sampling.max_tokens == 5
    with pytest.raises(RequestError, match="KV cache holds 8 tokens"):
        read(limits=small, max_tokens=6)
    with pytest.raises(RequestError, match="no tokens remain for the answer"):
        read(prompt=[1] * 8, limits=small)


def test_padding_after_the_prompt_is_ignored() -> None:
    """input_lengths counts, not the tensor's width."""
    tensors = {
        "input_ids": np.array([[5, 6, -1, -1]], dtype=np.int32),
        "input_lengths": np.array([[2]], dtype=np.int32),
    }

    assert read_generation_request(tensors.get, LIMITS).token_ids.tolist() == [5, 6]


@pytest.mark.parametrize("length", [-1, 3])
def test_impossible_length_is_refused(length: int) -> None:
    """Never read past the tensor."""
    tensors = {
        "input_ids": np.array([[5, 6]], dtype=np.int32),
        "input_lengths": np.array([[length]], dtype=np.int32),
    }
    with pytest.raises(RequestError, match=f"input_lengths is {length}"):
        read_generation_request(tensors.get, LIMITS)


def test_the_prompt_is_a_copy() -> None:
    """Triton frees a request's memory after execute(), the engine reads it later."""
    tensors = {
        "input_ids": np.array([[5, 6]], dtype=np.int32),
        "input_lengths": np.array([[2]], dtype=np.int32),
    }
    request = read_generation_request(tensors.get, LIMITS)

    assert not np.shares_memory(request.token_ids, tensors["input_ids"])


def test_every_public_tensor_is_declared_by_the_engine() -> None:
    """The configuration and the code that reads it agree."""
    backend = backend_named("openvino_engine")
    declared = {tensor.name for tensor in backend.inputs}

    guide = {"guided_decoding_guide_type", "guided_decoding_guide"}
    assert declared == {"input_ids", "input_lengths", "acknowledged", *PUBLIC_NAMES, *guide}
    assert all(tensor.optional != tensor.name.startswith("input_") for tensor in backend.inputs)


def test_sampling_params_have_a_field_for_each_parameter() -> None:
    """With the neutral value of sampling.json as its default."""
    defaults = {field.name: field.default for field in fields(SamplingParams)}
    assert {name: defaults.get(name, "missing") for name in PARAMETERS} == {
        name: parameter.neutral for name, parameter in PARAMETERS.items()
    }


def read_texts(**texts: bytes | list[bytes]) -> GenerationRequest:
    """A request with tensors of text, under the engine's names."""
    tensors: dict[str, NDArray[Any]] = {
        "input_ids": np.array([[5]], dtype=np.int32),
        "input_lengths": np.array([[1]], dtype=np.int32),
    }
    for name, value in texts.items():
        values = value if isinstance(value, list) else [value]
        tensors[name] = np.array([values], dtype=np.object_)
    return read_generation_request(tensors.get, LIMITS)


def test_adapter_and_guide() -> None:
    """Absent for most engines, which do not have the tensors."""
    plain = read_texts()
    assert (plain.lora_name, plain.guide) == ("", None)
    asked = read_texts(
        lora_name="françois".encode(),
        guided_decoding_guide_type=b"regex",
        guided_decoding_guide=b"[0-9]+",
    )
    assert asked.lora_name == "françois"
    assert asked.guide == GuideSpec("regex", "[0-9]+")
    assert read_texts(guided_decoding_guide_type=b"json").guide == GuideSpec("json")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"lora_name": b"\xff"}, "lora_name is not UTF-8"),
        ({"lora_name": [b"a", b"b"]}, "lora_name has 2 values, expected one text"),
        ({"lora_name": b"x" * 65_537}, "lora_name has 65537 bytes"),
        ({"guided_decoding_guide": b"a"}, "guided_decoding_guide_type is '', expected one of json"),
        ({"guided_decoding_guide_type": b"yaml"}, "guided_decoding_guide_type is 'yaml'"),
        ({"guided_decoding_guide_type": b"regex"}, "guided_decoding_guide has 0 characters"),
        (
            {"guided_decoding_guide_type": b"json", "guided_decoding_guide": b"{}"},
            "guided_decoding_guide has 2 characters, expected none",
        ),
    ],
)
def test_adapters_and_guides_that_are_refused(
    texts: dict[str, bytes | list[bytes]], said: str
) -> None:
    """By the tensor's name."""
    with pytest.raises(RequestError, match=said):
        read_texts(**texts)

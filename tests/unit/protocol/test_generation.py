# SPDX-License-Identifier: Apache-2.0
"""Text generation on the wire: bytes as the protocol wants them, timings as AIPerf defines them."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tritonctl.errors import RequestRejectedError
from tritonctl.protocol.generation import (
    Chunk,
    Generation,
    SamplingParameters,
    Timing,
    generation_request,
    read_chunk,
)
from tritonctl.protocol.sampling_table import sampling_parameters

MS = 1_000_000


def _inputs(request: Any) -> dict[str, tuple[str, bytes]]:
    assert all(list(tensor.shape) == [1, 1] for tensor in request.inputs)
    pairs = zip(request.inputs, request.raw_input_contents, strict=True)
    return {tensor.name: (tensor.datatype, raw) for tensor, raw in pairs}


def test_greedy_request_carries_only_prompt_and_stream() -> None:
    """What is not asked for is not sent: the server's defaults hold."""
    request = generation_request("m", "héllo", SamplingParameters(), request_id="7")
    assert (request.model_name, request.id) == ("m", "7")
    assert request.parameters["triton_enable_empty_final_response"].bool_param
    assert _inputs(request) == {
        "text_input": ("BYTES", b"\x06\x00\x00\x00h\xc3\xa9llo"),
        "stream": ("BOOL", b"\x01"),
    }
    assert [output.name for output in request.outputs] == [
        "text_output",
        "output_ids",
        "num_input_tokens",
        "num_output_tokens",
        "finish_reason",
    ]


def test_every_sampling_value_has_its_wire_type() -> None:
    """Little-endian, four bytes each, eight for the seed."""
    sampling = SamplingParameters(
        max_tokens=5,
        temperature=0.5,
        top_k=1,
        top_p=1.0,
        repetition_penalty=1.5,
        presence_penalty=-2.0,
        frequency_penalty=0.25,
        random_seed=2**64 - 1,
        end_id=-1,
    )
    inputs = _inputs(generation_request("m", "x", sampling))
    assert inputs["max_tokens"] == ("INT32", b"\x05\x00\x00\x00")
    assert inputs["temperature"] == ("FP32", b"\x00\x00\x00\x3f")
    assert inputs["top_k"] == ("INT32", b"\x01\x00\x00\x00")
    assert inputs["top_p"] == ("FP32", b"\x00\x00\x80\x3f")
    assert inputs["repetition_penalty"] == ("FP32", struct.pack("<f", 1.5))
    assert inputs["presence_penalty"] == ("FP32", struct.pack("<f", -2.0))
    assert inputs["frequency_penalty"] == ("FP32", struct.pack("<f", 0.25))
    assert inputs["random_seed"] == ("UINT64", b"\xff" * 8)
    assert inputs["end_id"] == ("INT32", b"\xff\xff\xff\xff")
    assert len(inputs) == 11


def test_every_sampling_parameter_is_a_field() -> None:
    """In the order and of the type that sampling.json says."""
    hints = get_type_hints(SamplingParameters)
    parameters = sampling_parameters().values()
    names = [parameter.request_field for parameter in parameters]
    assert [name for name in hints if name in names] == names
    assert [hints[each.request_field] for each in parameters] == [
        each.python_type | None for each in parameters
    ]


def test_lists_and_options_have_their_wire_types() -> None:
    """Words are length-prefixed one after another; a single end id may be given bare."""
    sampling = SamplingParameters(
        min_tokens=2,
        end_id=(1, 258),
        stop_words=("é", "ab"),
        bad_words=("x",),
        include_stop_word=True,
        exclude_input_in_output=False,
        return_log_probs=True,
    )
    request = generation_request("m", "x", sampling)
    shapes = {tensor.name: list(tensor.shape) for tensor in request.inputs}
    raw = {t.name: r for t, r in zip(request.inputs, request.raw_input_contents, strict=True)}
    assert (shapes["end_id"], shapes["stop_words"]) == ([1, 2], [1, 2])
    assert raw["end_id"] == b"\1\0\0\0\2\1\0\0"
    assert raw["stop_words"] == b"\2\0\0\0\xc3\xa9\2\0\0\0ab"
    assert raw["bad_words"] == b"\1\0\0\0x"
    assert (raw["include_stop_word"], raw["exclude_input_in_output"]) == (b"\1", b"\0")
    assert (raw["min_tokens"], raw["return_log_probs"]) == (b"\2\0\0\0", b"\1")
    assert [o.name for o in request.outputs][-2:] == ["cum_log_probs", "output_log_probs"]


def test_adapters_and_guides_are_texts() -> None:
    """One element each."""
    sampling = SamplingParameters(
        lora_name="french", guided_decoding_guide_type="regex", guided_decoding_guide="é+"
    )
    inputs = _inputs(generation_request("m", "x", sampling))
    assert inputs["lora_name"] == ("BYTES", b"\6\0\0\0french")
    assert inputs["guided_decoding_guide_type"] == ("BYTES", b"\5\0\0\0regex")
    assert inputs["guided_decoding_guide"] == ("BYTES", b"\3\0\0\0\xc3\xa9+")


@pytest.mark.parametrize(("ids", "sent"), [([], None), ([7, 300], b"\7\0\0\0\x2c\1\0\0")])
def test_ids_of_an_answer_that_broke_off(ids: list[int], sent: bytes | None) -> None:
    """They go along, where any has come."""
    request = generation_request("m", "x", SamplingParameters(), resume_ids=ids)
    raw = {t.name: r for t, r in zip(request.inputs, request.raw_input_contents, strict=True)}
    assert raw.get("resume_ids") == sent


def test_zero_is_a_value() -> None:
    """temperature 0 and seed 0 are sent, not taken for "absent"."""
    sampling = SamplingParameters(temperature=0.0, random_seed=0)
    assert {"temperature", "random_seed"} <= set(_inputs(generation_request("m", "x", sampling)))


def test_prompt_bytes_are_sent_as_they_are() -> None:
    """Whether a prompt is UTF-8 is for the server to say."""
    request = generation_request("m", b"\xff\x00", SamplingParameters())
    assert _inputs(request)["text_input"] == ("BYTES", b"\x02\x00\x00\x00\xff\x00")


def test_messages_go_out_as_json() -> None:
    """A conversation takes the place of text_input, in readable UTF-8."""
    messages = [{"role": "user", "content": '七 \u0000 "x"'}]
    inputs = _inputs(generation_request("m", messages, SamplingParameters()))
    assert "text_input" not in inputs
    datatype, raw = inputs["messages"]
    assert (datatype, struct.unpack("<I", raw[:4])[0]) == ("BYTES", len(raw) - 4)
    assert "七".encode() in raw
    assert json.loads(raw[4:]) == messages


def test_messages_that_are_not_unicode_are_left_to_the_server() -> None:
    """Half a surrogate pair goes out as bytes that are not UTF-8, and the server says where."""
    messages = [{"role": "user", "content": "\ud83d"}]
    raw = _inputs(generation_request("m", messages, SamplingParameters()))["messages"][1]
    with pytest.raises(UnicodeDecodeError):
        raw[4:].decode("utf-8")


@given(st.text())
def test_any_text_is_length_prefixed_utf8(text: str) -> None:
    """Length in bytes, not in characters."""
    raw = _inputs(generation_request("m", text, SamplingParameters()))["text_input"][1]
    assert struct.unpack("<I", raw[:4])[0] == len(raw) - 4
    assert raw[4:].decode("utf-8") == text


@pytest.mark.parametrize(
    ("sampling", "problem"),
    [
        (SamplingParameters(max_tokens=2**31), "max_tokens: 2147483648 does not fit into INT32"),
        (SamplingParameters(random_seed=-1), "random_seed: -1 does not fit into UINT64"),
        (SamplingParameters(random_seed=2**64), "random_seed: 18446744073709551616 does not fit"),
        (SamplingParameters(temperature=1e39), "temperature: 1e+39 does not fit into FP32"),
        (SamplingParameters(top_k=1.5), "top_k: 1.5 does not fit into INT32"),  # type: ignore[arg-type]
    ],
)
def test_value_that_its_type_cannot_hold(sampling: SamplingParameters, problem: str) -> None:
    """Refused here with the tensor's name, exit code 2, instead of wrapping around."""
    with pytest.raises(RequestRejectedError) as caught:
        generation_request("m", "x", sampling)
    assert caught.value.problem.startswith(problem)
    assert caught.value.exit_code == 2


def test_not_a_number_is_left_to_the_server() -> None:
    """NaN fits into FP32: the server names the tensor and its range."""
    sampling = SamplingParameters(temperature=math.nan)
    raw = _inputs(generation_request("m", "x", sampling))["temperature"][1]
    assert math.isnan(struct.unpack("<f", raw)[0])


def _response(text: bytes, tokens: int, reason: bytes, *, final: bool = False) -> Any:
    response = service_pb2.ModelStreamInferResponse()
    answer = response.infer_response
    answer.parameters["triton_final_response"].bool_param = final
    for name, raw in (
        ("finish_reason", struct.pack("<I", len(reason)) + reason),
        ("text_output", struct.pack("<I", len(text)) + text),
        ("num_output_tokens", struct.pack("<i", tokens)),
        ("num_input_tokens", struct.pack("<i", 3)),
    ):
        answer.outputs.add(name=name)
        answer.raw_output_contents.append(raw)
    return response


def test_read_chunk() -> None:
    """Outputs are found by name, in whatever order they come."""
    chunk, final = read_chunk(_response("字é".encode(), 2, b"stop"))
    assert chunk is not None
    assert (chunk.text, chunk.finish_reason) == ("字é", "stop")
    assert (chunk.num_input_tokens, chunk.num_output_tokens) == (3, 2)
    assert not final


def test_log_probs_of_a_stream_are_joined() -> None:
    """Those of each token one after another; the sum is the last chunk's."""
    chunks = []
    for values, total in (((-0.5, -0.25), -0.75), ((-1.0,), -1.75)):
        response = _response(b"x", len(values), b"")
        for name, floats in (("cum_log_probs", (total,)), ("output_log_probs", values)):
            response.infer_response.outputs.add(name=name)
            raw = struct.pack(f"<{len(floats)}f", *floats)
            response.infer_response.raw_output_contents.append(raw)
        chunk, _ = read_chunk(response)
        assert chunk is not None
        chunks.append(chunk)
    answer = Generation.of(0, chunks)
    assert (answer.log_probs, answer.cum_log_prob) == ((-0.5, -0.25, -1.0), -1.75)


def test_read_the_empty_final_response() -> None:
    """Triton ends a decoupled stream with a response without outputs."""
    response = service_pb2.ModelStreamInferResponse()
    response.infer_response.parameters["triton_final_response"].bool_param = True
    assert read_chunk(response) == (None, True)


def test_final_response_with_content() -> None:
    """The last chunk may carry the flag itself."""
    chunk, final = read_chunk(_response(b"x", 1, b"length", final=True))
    assert chunk is not None
    assert final


def test_error_in_a_stream() -> None:
    """Triton's own words, and the assurance that the server goes on."""
    response = service_pb2.ModelStreamInferResponse(error_message="max_tokens must be positive")
    with pytest.raises(RequestRejectedError, match="max_tokens must be positive"):
        read_chunk(response)


def _chunk(at_ms: float, tokens: int, text: str = "", reason: str = "") -> Chunk:
    return Chunk(text, 3, tokens, reason, int(at_ms * MS))


def test_timing_formula() -> None:
    """TTFT to the first chunk with a token, ITL = (e2e - TTFT) / (tokens - 1), tokens per e2e."""
    timing = Timing.of(100 * MS, [_chunk(150, 1), _chunk(160, 3), _chunk(190, 5)])
    assert (timing.ttft_ms, timing.itl_ms, timing.e2e_ms) == (50.0, 10.0, 90.0)
    assert timing.tokens_per_second == pytest.approx(5 / 0.090)


def test_timing_skips_chunks_without_tokens() -> None:
    """A chunk without a token is not the first token."""
    timing = Timing.of(0, [_chunk(10, 0), _chunk(40, 1), _chunk(60, 2)])
    assert (timing.ttft_ms, timing.itl_ms, timing.e2e_ms) == (40.0, 20.0, 60.0)


def test_timing_of_one_token() -> None:
    """One token has no gap."""
    timing = Timing.of(0, [_chunk(20, 1)])
    assert (timing.ttft_ms, timing.itl_ms, timing.tokens_per_second) == (20.0, None, 50.0)


@pytest.mark.parametrize("chunks", [[], [_chunk(20, 0)]])
def test_timing_without_tokens(chunks: list[Chunk]) -> None:
    """Nothing generated: only the end-to-end time is known."""
    timing = Timing.of(0, chunks)
    assert (timing.ttft_ms, timing.itl_ms, timing.tokens_per_second) == (None, None, None)
    assert timing.e2e_ms > 0


def test_generation_puts_chunks_together() -> None:
    """Text joined, counts and reason of the last chunk."""
    whole = Generation.of(0, [_chunk(1, 1, "se"), _chunk(2, 2, "ven"), _chunk(3, 3, "", "stop")])
    assert (whole.text, whole.num_output_tokens, whole.finish_reason) == ("seven", 3, "stop")
    assert Generation.of(0, []).text == ""

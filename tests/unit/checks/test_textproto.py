# SPDX-License-Identifier: Apache-2.0
"""The text format with places: read as protobuf reads it, refused where protobuf refuses it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.checks.config.lexer import TextprotoError
from tritonctl.checks.config.message import ConfigMessage, read
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.config.textproto import parse
from tritonctl.checks.source_span import SourceText

TENSORS = """
# a comment with "quotes" and { braces
name: "m"  backend: 'python'; max_batch_size: 010,
input [ { name: "A" data_type: TYPE_FP32 dims: [ -1, 3 ] }, { name: "B" data_type: 8 dims: 0x10 } ]
input { name: "C" "D" data_type: TYPE_INT64 dims: [] optional: true reshape { shape: [] } }
output < name: "\\303\\251\\x41\\u00e9\\n" data_type: TYPE_STRING dims: [1] >
parameters { key: "a" value { string_value: "x" } }
parameters: [ { key: "b" value: { string_value: "y" } } ]
instance_group [{ kind: KIND_CPU count: 2 }]
dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: DELAY } } }
"""


def config(text: str) -> ConfigMessage:
    return read(parse(text), model_config_schema().ModelConfig())


def reference(text: str) -> Any:
    return text_format.Parse(text, model_config_schema().ModelConfig())


def test_reads_what_protobuf_reads() -> None:
    """Every way of writing a value."""
    found = config(TENSORS)
    assert found.problems == []
    assert found.message == reference(TENSORS)


def test_places() -> None:
    """Of values, of elements, of a map's entries; of what is around when something is absent."""
    found, source = config(TENSORS), SourceText("config.pbtxt", TENSORS)

    def at(*path: str | int) -> str:
        span = found.span(*path)
        return TENSORS[span.start : span.end]

    assert at("backend") == "'python'"
    assert at("input", 0, "dims", 0) == "-1"
    assert at("input", 1, "name") == '"B"'
    assert at("input", 2, "name") == '"C" "D"'
    assert at("parameters", "b", "string_value") == '"y"'
    assert at("dynamic_batching", "priority_queue_policy", 1, "timeout_action") == "DELAY"
    assert at("input", 1, "reshape", "shape") == at("input", 1)
    assert at("no_such_thing") == TENSORS
    assert found.name_span("input", 0, "dims") != found.span("input", 0, "dims")
    assert source.position(found.span("input", 1, "dims", 0).start) == (4, 92)
    assert source.line(3).startswith('name: "m"')


MISTAKES = [
    ("nmae: 'm'", "unknown", "ModelConfig has no field nmae"),
    ("name: 'a'\nname: 'b'", "again", "name takes one value and is given again"),
    ("name: 3", "type", "name takes a string of valid UTF-8 in quotes"),
    ("name: '\\377'", "type", "name takes a string"),
    ("max_batch_size: '8'", "type", "max_batch_size takes an integer of 32 bits"),
    ("max_batch_size: 1.0", "type", "max_batch_size takes an integer of 32 bits"),
    ("max_batch_size: 2147483648", "type", "max_batch_size takes an integer of 32 bits"),
    ("max_batch_size: [1]", "type", "max_batch_size takes one value, not a list"),
    ("input { dims: TYPE }", "type", "dims takes an integer of 64 bits"),
    ("input { optional: yes }", "type", "optional takes true or false"),
    ("input { data_type: TYPE_FLOAT }", "type", "data_type takes a DataType, without quotes"),
    ("input: 'a'", "type", "input takes a message in braces, { }"),
    ("name { a: 1 }", "type", "name takes a string"),
    ("parameters { key: 'a' vlaue { } }", "unknown", "ParametersEntry has no field vlaue"),
    ("parameters { key: 'a' value { string_value: 3 } }", "type", "string_value takes a string"),
    ("dynamic_batching { max_queue_delay_microseconds: -1 }", "type", "bits, 0 or more"),
]


@pytest.mark.parametrize(("text", "mistake", "words"), MISTAKES)
def test_mistakes(text: str, mistake: str, words: str) -> None:
    """Each is found, named, and refused by protobuf, too."""
    [problem] = config(text).problems
    assert problem.mistake == mistake
    assert words in problem.text
    with pytest.raises(text_format.ParseError):
        reference(text)


def test_what_protobuf_takes_silently() -> None:
    """A key twice: the last one counts."""
    twice = 'parameters { key: "a" value { string_value: "%s" } }'
    found = config(twice % "x" + twice % "y")
    assert [problem.mistake for problem in found.problems] == ["key-again"]
    assert found.message == reference(twice % "x" + twice % "y")


def test_fields_that_exclude_each_other() -> None:
    """Refused by both parsers."""
    both = "dynamic_batching { } sequence_batching { }"
    [problem] = config(both).problems
    assert problem.text == "sequence_batching excludes dynamic_batching, which is given, too"
    with pytest.raises(text_format.ParseError):
        reference(both)


SYNTAX = [
    ("name 'm'", (1, 6), "expected ':' after name, found \"'m'\""),
    ("name: ${model_name}", (1, 7), "expected a value, found '$'"),
    ("input [ { name: 'a' }", (1, 22), "expected ',' or ']', found the end of the file"),
    ("input { name: 'a' ", (1, 19), "'}' is missing at the end"),
    ("input { name: 'a' ]", (1, 19), "expected a field's name, found ']'"),
    ("name: 'm\n'", (1, 7), "a string is not closed on its line"),
    ("max_batch_size: 08", (1, 17), "octal"),
    ("max_batch_size: 8x", (1, 17), "a number runs into what follows it"),
    ("\x00", (1, 1), "unexpected character"),
    ("} ", (1, 1), "expected a field's name, found '}'"),
]


@pytest.mark.parametrize(("text", "place", "words"), SYNTAX)
def test_broken_texts(text: str, place: tuple[int, int], words: str) -> None:
    """Where it breaks, and what was expected there."""
    with pytest.raises(TextprotoError) as caught:
        parse(text)
    assert words in caught.value.problem
    assert SourceText("", text).position(caught.value.span.start) == place
    with pytest.raises(text_format.ParseError):
        reference(text)


def test_only_the_cpp_parser_refuses() -> None:
    """What Python's protobuf lets pass, and Triton does not."""
    for text in ("name: '\\q'", "name:\u00a0'm'"):
        with pytest.raises(TextprotoError):
            config(text)
    for text, place in (("name: 'a\0b'", 8), ('name: "a\\\0"', 9), ("# \0\nname: 'm'", 2)):
        with pytest.raises(TextprotoError, match=r"NUL byte|unexpected character") as caught:
            config(text)
        assert caught.value.span.start == place
    assert config("name: 'a\\000b'").problems == []  # written as an escape, it is taken
    [problem] = config("input { data_type: 'TYPE_FP32' }").problems
    assert "data_type takes a DataType, without quotes" in problem.text


def test_an_empty_list() -> None:
    """It sets nothing, but its name must be one."""
    assert config("input []  cc_model_filenames: []").problems == []
    assert [p.mistake for p in config("inputs: []").problems] == ["unknown"]
    assert [p.mistake for p in config("name: []").problems] == ["type"]
    assert [p.text for p in config("input { dims [] }").problems] == ["':' is missing after dims"]


def test_one_of_several() -> None:
    """A second scheduler is refused, as protobuf refuses it."""
    [problem] = config("dynamic_batching { } sequence_batching { }").problems
    assert problem.mistake == "again"
    assert problem.text == "sequence_batching excludes dynamic_batching, which is given, too"


def test_the_name_of_an_extension() -> None:
    """It is read whole, and the configuration knows none."""
    text = "[type.example.com/some-type] { }"
    [problem] = config(text).problems
    assert problem.mistake == "unknown"
    assert text[problem.span.start : problem.span.end] == "[type.example.com/some-type]"


def test_numbers_beyond_every_type() -> None:
    """Whatever their length: refused as whole numbers, infinite as others, as they read in C++."""
    digits = "9" * 5_000
    [problem] = config(f"max_batch_size: {digits}").problems
    assert problem.text == "max_batch_size takes an integer of 32 bits"
    found = config(f"sequence_batching {{ direct {{ minimum_slot_utilization: -{digits} }} }}")
    assert found.problems == []
    assert found.message.sequence_batching.direct.minimum_slot_utilization == float("-inf")


def test_deep_nesting_is_refused() -> None:
    """No recursion without end."""
    with pytest.raises(TextprotoError, match="more than 100 messages inside each other"):
        parse("a {" * 100_000)


names = st.text(max_size=12)
numbers = st.integers(-(2**63), 2**63 - 1)
tensor = st.fixed_dictionaries(
    {"name": names, "data_type": st.integers(0, 14), "dims": st.lists(numbers, max_size=4)}
)


@given(
    name=names,
    inputs=st.lists(tensor, max_size=3),
    parameters=st.dictionaries(names, names, max_size=3),
    batch=st.integers(-(2**31), 2**31 - 1),
    line=st.booleans(),
    utf8=st.booleans(),
)
def test_any_message_comes_back(
    name: str,
    inputs: list[dict[str, Any]],
    parameters: dict[str, str],
    batch: int,
    line: bool,
    utf8: bool,
) -> None:
    """Whatever protobuf writes is read as the same message."""
    message = model_config_schema().ModelConfig(name=name, input=inputs, max_batch_size=batch)
    for key, value in parameters.items():
        message.parameters[key].string_value = value
    text = text_format.MessageToString(message, as_one_line=line, as_utf8=utf8)
    found = config(text)
    assert found.problems == []
    assert found.message == message


ALPHABET = "name: 'm' {}[]<>,;:#\n\t\\\"$-.0x1eEfF8input dims TYPE_FP32 é\u00a0\x00"


@given(st.text(alphabet=ALPHABET, max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Never anything but a tree or the one error, whose place is in the text."""
    try:
        tree = parse(text)
    except TextprotoError as error:
        span = error.span
    else:
        span = tree.span
        config(text)
    assert 0 <= span.start <= span.end <= len(text)


# Python's protobuf takes escapes that do not exist.
PLAIN = TENSORS.replace("\\", "")


@given(
    st.integers(0, len(PLAIN) - 1), st.sampled_from(["", " ", "{", "}", "'", "0", "x", "\n", "["])
)
def test_a_changed_text_is_judged_as_by_protobuf(at: int, put: str) -> None:
    """One character is replaced: both read the same, or neither."""
    text = PLAIN[:at] + put + PLAIN[at + 1 :]
    try:
        expected = reference(text)
    except text_format.ParseError:
        expected = None
    try:
        found = config(text)
    except TextprotoError:
        assert expected is None
        return
    if any(problem.mistake != "key-again" for problem in found.problems):
        assert expected is None
    else:
        assert found.message == expected

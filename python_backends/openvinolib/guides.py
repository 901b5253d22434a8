# SPDX-License-Identifier: Apache-2.0
"""Guided decoding in OpenVINO's words, and what is refused without compiling a guide."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import openvino_genai

from openvinolib.json_grammar import ANY_JSON, grammar_of
from textlib.errors import RequestError
from textlib.request_tensors import GenerationRequest, Guide

MOST_LEVELS = 64  # schemas in each other
_NOT_FOLLOWED = (
    *("not", "if", "contains", "uniqueItems", "multipleOf"),
    *("dependentRequired", "dependentSchemas", "$dynamicRef"),
)
# Names of somebody's own, by schema.
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def structure(guide: Guide) -> openvino_genai.StructuredOutputConfig:
    """OpenVINO's form of a guide."""
    if guide.kind == "regex":
        return openvino_genai.StructuredOutputConfig(regex=guide.text)
    if guide.kind == "ebnf_grammar":
        return openvino_genai.StructuredOutputConfig(grammar=guide.text)
    if guide.kind == "json":
        return openvino_genai.StructuredOutputConfig(grammar=ANY_JSON)
    if grammar := grammar_of(json.loads(guide.text)):
        return openvino_genai.StructuredOutputConfig(grammar=grammar)
    return openvino_genai.StructuredOutputConfig(json_schema=guide.text)


def check_guided(request: GenerationRequest, guide: Guide) -> None:
    """Raises RequestError for what cannot be followed, whatever the guide is."""
    if request.resumed:
        raise RequestError(
            "guided_decoding_guide_type: a guide begins with the answer, it cannot go on after "
            "resume_ids. Send the request without them, for a new answer."
        )
    if request.sampling.min_tokens:
        raise RequestError("min_tokens: a guide says where the answer ends. Send one of the two.")
    if guide.kind == "json_schema":
        _check_schema(guide.text)


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"guided_decoding_guide is not JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise RequestError("guided_decoding_guide is no JSON schema: expected an object.")
    level: list[Mapping[str, Any]] = [schema]
    for _ in range(MOST_LEVELS):
        for each in level:
            if problem := _ignored(each):
                raise RequestError(f"guided_decoding_guide: {problem}. Send a schema without it.")
        level = [inner for each in level for inner in _schemas(each)]
        if not level:
            return
    raise RequestError(
        f"guided_decoding_guide has more than {MOST_LEVELS} levels. Send a simpler schema."
    )


def _ignored(schema: Mapping[str, Any]) -> str:
    """What xgrammar would pass over: an answer that ignores it looks like one that follows it."""
    for key in _NOT_FOLLOWED:
        if key in schema:
            return f"{key} is not supported"
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return f"$ref is {json.dumps(reference)[:80]}, only the schema itself can be referred to"
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        return "allOf with several schemas is not supported"
    return ""


def _schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas in a schema; values of `enum` and `const` are none."""
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            inner = list(value.values())
        elif key in ("enum", "const", "default", "examples"):
            continue
        else:
            inner = value if isinstance(value, list) else [value]
        yield from (each for each in inner if isinstance(each, dict))

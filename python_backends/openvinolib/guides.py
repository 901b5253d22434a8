# SPDX-License-Identifier: Apache-2.0
"""Guided decoding with OpenVINO, and the guides that are rejected without compiling."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import openvino_genai

from openvinolib.json_grammar import ANY_JSON, schema_grammar
from textlib.errors import RequestError
from textlib.triton.request_tensors import GenerationRequest, GuideSpec

MAX_LEVELS = 64  # nested schemas
_UNSUPPORTED = (
    *("not", "if", "contains", "uniqueItems", "multipleOf"),
    *("dependentRequired", "dependentSchemas", "$dynamicRef"),
)
# Keywords whose value maps a name to a schema.
_NAMED_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "definitions")


def structured_output_config(guide: GuideSpec) -> openvino_genai.StructuredOutputConfig:
    """Convert a guide into OpenVINO's form."""
    if guide.kind == "regex":
        return openvino_genai.StructuredOutputConfig(regex=guide.text)
    if guide.kind == "ebnf_grammar":
        return openvino_genai.StructuredOutputConfig(grammar=guide.text)
    if guide.kind == "json":
        return openvino_genai.StructuredOutputConfig(grammar=ANY_JSON)
    if grammar := schema_grammar(json.loads(guide.text)):
        return openvino_genai.StructuredOutputConfig(grammar=grammar)
    return openvino_genai.StructuredOutputConfig(json_schema=guide.text)


def check_guide(request: GenerationRequest, guide: GuideSpec) -> None:
    """Raise RequestError for a guided request that the engine cannot follow."""
    if request.num_resumed_ids:
        raise RequestError(
            "guided_decoding_guide_type: a guide starts with the answer and cannot continue after "
            "resume_ids. Send the request without them, for a new answer."
        )
    if request.sampling.min_tokens:
        raise RequestError("min_tokens: a guide decides where the answer ends. Send only one.")
    if guide.kind == "json_schema":
        _check_schema(guide.text)


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"guided_decoding_guide is not JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise RequestError("guided_decoding_guide is not a JSON schema: expected an object.")
    level: list[Mapping[str, Any]] = [schema]
    for _ in range(MAX_LEVELS):
        for each in level:
            if problem := _unsupported_keyword(each):
                raise RequestError(f"guided_decoding_guide: {problem}. Send a schema without it.")
        level = [inner for each in level for inner in _subschemas(each)]
        if not level:
            return
    raise RequestError(
        f"guided_decoding_guide has more than {MAX_LEVELS} levels. Send a simpler schema."
    )


def _unsupported_keyword(schema: Mapping[str, Any]) -> str:
    """Return the problem of a keyword that xgrammar ignores, because ignoring it is invisible."""
    for key in _UNSUPPORTED:
        if key in schema:
            return f"{key} is not supported"
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return f"$ref is {json.dumps(reference)[:80]}, expected a reference into the schema itself"
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        return "allOf with several schemas is not supported"
    return ""


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas directly inside a schema; `enum` and `const` contain values instead."""
    for key, value in schema.items():
        if key in _NAMED_SUBSCHEMAS and isinstance(value, dict):
            inner = list(value.values())
        elif key in ("enum", "const", "default", "examples"):
            continue
        else:
            inner = value if isinstance(value, list) else [value]
        yield from (each for each in inner if isinstance(each, dict))

# SPDX-License-Identifier: Apache-2.0
"""Parse the bodies of call blocks to names and arguments.

Each parser takes the body of one block and the tools' parameters, {name: JSON schema}, and raises
MalformedCallError. Families that write arguments as JSON do not need the schemas. Families that
write `<parameter=city>Paris</parameter>` do: the schema decides whether 7 is a number or a text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tritonctl.frontend.tools.calls import MalformedCallError, ToolCall
from tritonctl.frontend.tools.json_text import read_json, write_json

Schemas = Mapping[str, Mapping[str, Any]]
ReadBody = Callable[[str, Schemas], list[ToolCall]]

_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters")
_FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)
_MAX_PYTHON_LENGTH = 1 << 16


def json_calls(body: str, _: Schemas) -> list[ToolCall]:
    """Parse `{"name": "f", "arguments": {...}}`, or a list of such objects."""
    value = _json(body)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise MalformedCallError("an empty list")
    return [_json_call(item) for item in values]


def _json_call(value: Any) -> ToolCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise MalformedCallError("not an object")
    name = next((value[key] for key in _NAME_KEYS if key in value), None)
    arguments = next((value[key] for key in _ARGUMENT_KEYS if key in value), None)
    return ToolCall(_name(name), _arguments(arguments))


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise MalformedCallError(str(error)) from None


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise MalformedCallError("no name")
    return value.strip()


def _arguments(value: Any) -> str:
    """Return an object's JSON; some models write it as a JSON string."""
    if isinstance(value, str):
        value = _json(value) if value.strip() else {}
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise MalformedCallError("the arguments are not an object")
    try:
        return write_json(value)
    except ValueError as error:
        raise MalformedCallError(str(error)) from None


def mistral_calls(body: str, schemas: Schemas) -> list[ToolCall]:
    """Parse ` [{"name", "arguments"}, ...]`, or newer `name[CALL_ID]id[ARGS]{...}`."""
    if body.lstrip().startswith("[") and not body.lstrip().startswith(("[ARGS]", "[CALL_ID]")):
        return json_calls(body, schemas)
    head, brace, tail = body.partition("{")
    name, _, call_id = head.replace("[ARGS]", "").partition("[CALL_ID]")
    return [ToolCall(_name(name), _arguments(_json(brace + tail)), call_id.strip() or None)]


def _between(body: str, opener: str, closer: str) -> Iterator[str]:
    """Yield the texts between pairs of marks. Only whitespace may stand outside."""
    pieces = body.split(opener)
    if pieces[0].strip() or len(pieces) == 1:
        raise MalformedCallError("no call")
    for piece in pieces[1:]:
        inner, mark, outside = piece.partition(closer)
        if not mark or outside.strip():
            raise MalformedCallError(f"{opener} without {closer}")
        yield inner


def deepseek_calls(body: str, _: Schemas) -> list[ToolCall]:
    """Parse DeepSeek V3 (`function<sep>name` and a fence) and V3.1 (`name<sep>{...}`)."""
    return [
        _deepseek_call(piece)
        for piece in _between(body, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    ]


def _deepseek_call(text: str) -> ToolCall:
    header, mark, arguments = text.partition("<｜tool▁sep｜>")
    if not mark:
        raise MalformedCallError("no separator")
    if fenced := _FENCE.search(arguments):
        return ToolCall(_name(arguments[: fenced.start()]), _arguments(_json(fenced.group(1))))
    return ToolCall(_name(header), _arguments(_json(arguments)))


def kimi_calls(body: str, _: Schemas) -> list[ToolCall]:
    """Parse Kimi K2: `functions.name:0`, which is also the id, and the arguments."""
    calls = []
    for piece in _between(body, "<|tool_call_begin|>", "<|tool_call_end|>"):
        head, _mark, arguments = piece.partition("<|tool_call_argument_begin|>")
        name = re.sub(r":\d+$", "", head.strip()).removeprefix("functions.")
        calls.append(ToolCall(_name(name), _arguments(_json(arguments)), head.strip()))
    return calls


_QWEN_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>\s*)?", re.DOTALL)
_QWEN_PARAMETER = re.compile(r"\s*<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def qwen_coder_calls(body: str, schemas: Schemas) -> list[ToolCall]:
    """Parse Qwen3-Coder: `<function=f>` with `<parameter=p>` elements, whose values are text."""
    match = _QWEN_FUNCTION.fullmatch(body)
    if not match:
        raise MalformedCallError("no function")
    name, inner = match.groups()
    return [_typed(name, _pairs(_QWEN_PARAMETER, inner), schemas)]


_GLM_PAIR = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def glm_calls(body: str, schemas: Schemas) -> list[ToolCall]:
    """Parse GLM 4.5: the name, then pairs of `<arg_key>` and `<arg_value>`."""
    name, mark, pairs = body.partition("<arg_key>")
    return [_typed(_name(name), _pairs(_GLM_PAIR, mark + pairs), schemas)]


def _pairs(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    """Return the pairs in the text. Raises MalformedCallError for anything else."""
    pairs: dict[str, str] = {}
    position = 0
    while match := pattern.match(text, position):
        pairs[match.group(1).strip()] = match.group(2)
        position = match.end()
    if text[position:].strip():
        raise MalformedCallError("text between the arguments")
    return pairs


def _typed(name: str, values: Mapping[str, str], schemas: Schemas) -> ToolCall:
    """Convert texts to values by the tool's schema; without a type they stay texts."""
    properties = schemas.get(name, {}).get("properties")
    properties = properties if isinstance(properties, dict) else {}
    return ToolCall(
        name, _arguments({key: _value(text, properties.get(key)) for key, text in values.items()})
    )


def _value(text: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string" or schema is None:
        return text
    try:
        value = read_json(text)
    except ValueError:
        return text  # the client's validation reports it better
    if isinstance(kind, list) and isinstance(value, str):
        return text
    return value


def python_calls(body: str, _: Schemas) -> list[ToolCall]:
    """Parse `[f(a=1), g(b="x")]` with literals only."""
    if len(body) > _MAX_PYTHON_LENGTH:
        raise MalformedCallError("too long")
    try:
        tree = ast.parse(body.strip(), mode="eval")
        if not isinstance(tree.body, ast.List) or not tree.body.elts:
            raise MalformedCallError("not a list of calls")
        return [_python_call(node) for node in tree.body.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedCallError(str(error)) from None


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise MalformedCallError("not a call with named arguments")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise MalformedCallError("arguments without names")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(ast.unparse(node.func), _arguments(arguments))

# SPDX-License-Identifier: Apache-2.0
"""Python source of the classes that a JSON schema describes, for programs without tritonctl.

Writing a type here instead of a second time by hand keeps both sides of a process boundary equal.
"""

from __future__ import annotations

import inspect
import json
import keyword
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_LINE = 100
_INDENT = " " * 4
_PLAIN_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict[str, Any]",
}


def class_source(
    definitions: Mapping[str, Any], classes: Mapping[str, str], parsed: Mapping[str, str]
) -> str:
    """Return the source of one frozen dataclass per entry of `classes`, in that order.

    Args:
        definitions: The schemas by name, from `json_schema.definitions`.
        classes: The class of each definition. Its fields are the definition's properties, required
            ones first; constants are left out, and a keyword gets a trailing underscore.
        parsed: Existing classes that the program parses the remaining definitions into.
    """
    names = {**classes, **parsed}
    return "\n\n".join(
        _class(class_name, definitions[name], names) for name, class_name in classes.items()
    )


def class_table(classes: Mapping[str, str]) -> str:
    """Return the source of `CLASSES`: the class of each definition by the definition's name."""
    entries = "".join(f'{_INDENT}"{name}": {value},\n' for name, value in classes.items())
    return f"CLASSES: dict[str, type] = {{\n{entries}}}\n"


def _class(name: str, schema: Mapping[str, Any], names: Mapping[str, str]) -> str:
    required = schema.get("required", ())
    fields = {key: about for key, about in schema["properties"].items() if "const" not in about}
    ordered = sorted(fields, key=lambda key: key not in required)  # stable
    lines = ["@dataclass(frozen=True)", f"class {name}:", *_docstring(schema["description"]), ""]
    for key in ordered:
        lines += _field(key, fields[key], names, is_required=key in required)
    return "\n".join(lines) + "\n"


def _docstring(text: str) -> Iterator[str]:
    first, *others = inspect.cleandoc(text).splitlines()
    if not others:
        yield f'{_INDENT}"""{first}"""'
        return
    yield f'{_INDENT}"""{first}'
    yield from (f"{_INDENT}{line}".rstrip() for line in others)
    yield f'{_INDENT}"""'


def _field(
    key: str, schema: Mapping[str, Any], names: Mapping[str, str], *, is_required: bool
) -> list[str]:
    attribute = f"{key}_" if keyword.iskeyword(key) else key
    line = f"{_INDENT}{attribute}: {_type(schema, names)}"
    if not is_required:
        default = schema.get("default")
        line += " | None = None" if default is None else f" = {_default(default)}"
    if "description" not in schema:
        return [line]
    comment = f"# {schema['description']}"
    if len(line) + 2 + len(comment) <= _LINE:
        return [f"{line}  {comment}"]
    return [*_comment_above(schema["description"]), line]


def _comment_above(text: str) -> list[str]:
    start = f"{_INDENT}# "
    return textwrap.wrap(text, _LINE, initial_indent=start, subsequent_indent=start)


def _type(schema: Mapping[str, Any], names: Mapping[str, str]) -> str:
    if "$ref" in schema:
        return names[schema["$ref"].rpartition("/")[2]]
    if "oneOf" in schema:  # a class that holds every alternative, plain numbers too
        references = [option for option in schema["oneOf"] if "$ref" in option]
        return " | ".join(dict.fromkeys(_type(option, names) for option in references))
    if "enum" in schema:
        return f"Literal[{', '.join(json.dumps(value) for value in schema['enum'])}]"
    if schema["type"] == "array":
        return f"tuple[{_type(schema['items'], names)}, ...]"
    return "Path" if schema.get("format") == "path" else _PLAIN_TYPES[schema["type"]]


def _default(value: Any) -> str:
    if value == {}:
        return "field(default_factory=dict)"
    return json.dumps(value) if isinstance(value, str) else repr(value)

# SPDX-License-Identifier: Apache-2.0
"""Translates pydantic's validation errors into messages for authors of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from tritonctl.errors import choices

if TYPE_CHECKING:  # clients import this module without YAML
    from tritonctl.project.yaml import Location

# Expected values by pydantic's error type; braces hold a value of the error's context.
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of at most 4300 digits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "multiple_of": "a multiple of {multiple_of}",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "path_type": "a path",
    "none_required": "nothing",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "too_short": "at least {min_length} in the list",
    "too_long": "at most {max_length} in the list",
    "dict_type": "a section of keys",
    "mapping_type": "a section of keys",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "dataclass_type": "a section of keys",
    "invalid_key": "text as a key",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_OWN_WORDS = ("value_error", "assertion_error")


def reason(error: ValueError, data: Any = None) -> str:
    """Describe the worst mistake in a file: in its data, syntax or encoding.

    `data` is the file's content. It is needed for schemas with unions, because pydantic adds the
    names of their members to the location.
    """
    if isinstance(error, ValidationError):
        first = sort_errors(error)[0]
        location = tuple(first["loc"]) if data is None else error_location(first, data)
        return explain_error(first, location)[0]
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
    return str(error)


def explain_single_value(error: ValidationError) -> str | None:
    """Return expected and actual value of a single value's error; None for custom messages."""
    first = error.errors()[0]
    if first["type"] not in _EXPECTED:
        return None
    return f"{expectation(dict(first))}, got `{first['input']}`"


def sort_errors(error: ValidationError) -> list[dict[str, Any]]:
    """Return all mistakes, misspelt keys first: they often explain a missing key."""
    items = [dict(item) for item in error.errors()]
    return sorted(items, key=lambda item: item["type"] not in _UNKNOWN_KEY)


def explain_error(
    item: dict[str, Any], location: Location, root: type[BaseModel] | None = None
) -> tuple[str, str | None]:
    """Return problem and, if known, remedy of one of pydantic's errors.

    `location` is its location in the file, `root` the model of the file, for the valid keys.
    """
    path = ".".join(str(part) for part in location) or "the file"
    if item["type"] in _UNKNOWN_KEY:
        parent = ".".join(str(part) for part in location[:-1])
        problem = f"unknown key `{location[-1]}` in {f'`{parent}`' if parent else 'the file'}"
        valid_keys = _fields_at(item["loc"][:-1], root) if root else []
        return problem, choices(
            str(location[-1]), valid_keys, "valid keys:"
        ) if valid_keys else None
    if item["type"] == "missing":
        return f"`{path}` is missing", f"add `{location[-1]}:` there"
    if item["type"] == "json_invalid":
        return f"not JSON: {item['ctx']['error']}", None
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return _explain_union_tag(item, path)
    # Do not repeat a whole section: the user can read it in the file.
    got = "" if isinstance(item["input"], Mapping) else f", got `{item['input']}`"
    return f"`{path}`: {expectation(item)}{got}", None


def _explain_union_tag(item: dict[str, Any], path: str) -> tuple[str, str]:
    """Explain a mapping in which one key determines the others, such as `process` of arrivals."""
    key = item["ctx"]["discriminator"].strip("'")
    if item["type"] == "union_tag_not_found":
        return f"`{path}.{key}` is missing", f"add `{key}:` there"
    tag = str(item["ctx"]["tag"])
    tags = [word.strip("'") for word in item["ctx"]["expected_tags"].split(", ")]
    return f"`{path}.{key}`: unknown {key} `{tag}`", choices(tag, sorted(tags), "expected one of")


def expectation(item: dict[str, Any]) -> str:
    """Return the expected value of one of pydantic's errors, in words."""
    if item["type"] in _OWN_WORDS:
        return str(item["ctx"]["error"])
    template = _EXPECTED.get(item["type"], "another value")
    context = {name: _plain(value) for name, value in item.get("ctx", {}).items()}
    return f"expected {template.format(**context)}"


def _plain(value: object) -> object:
    """Format a bound without `.0`."""
    return f"{value:.15g}" if isinstance(value, float) else value


def error_location(item: dict[str, Any], data: Any) -> Location:
    """Return the location of an error in the file.

    pydantic's location also has the names of union members, and "[key]" for an invalid key.
    """
    location: Location = ()
    parts = [part for part in item["loc"] if part != "[key]"]
    for position, part in enumerate(parts):
        is_missing = item["type"] == "missing" and position == len(parts) - 1
        has_key = isinstance(data, Mapping) and part in data
        has_index = isinstance(data, list) and isinstance(part, int)
        if has_key or has_index or is_missing:
            location = (*location, part)
            data = data[part] if not is_missing else None
    return location


def _fields_at(location: Location, root: type[BaseModel]) -> list[str]:
    """Return the valid keys at a location of a file."""
    annotation: Any = root
    for part in location:
        annotation = _member(annotation, str(part))
    if _is_model(annotation):
        return sorted(info.alias or name for name, info in annotation.model_fields.items())
    return []


def _member(annotation: Any, part: str) -> Any:
    """Return the type at `part` of a model, a `dict[name, Item]`, a `list[Item]` or a union."""
    if _is_model(annotation):
        return _unwrap(annotation.model_fields[part].annotation)
    chosen = [inner for inner in get_args(annotation) if part in _tags(inner)]
    return _unwrap(chosen[0] if chosen else get_args(annotation)[-1])


def _unwrap(annotation: Any) -> Any:
    """Strip `Annotated` and `| None` from a type, unless a union remains."""
    while get_origin(annotation) is Annotated or NoneType in get_args(annotation):
        inner = [a for a in get_args(annotation) if a is not NoneType]
        if get_origin(annotation) is not Annotated and len(inner) > 1:
            break
        annotation = inner[0]
    return annotation


def _tags(alternative: Any) -> Iterable[str]:
    """Return the tags of a union's member."""
    if _is_model(alternative):
        literals = [get_args(info.annotation) for info in alternative.model_fields.values()]
        return [word for words in literals for word in words if isinstance(word, str)]
    return [extra.tag for extra in get_args(alternative) if isinstance(extra, Tag)]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)

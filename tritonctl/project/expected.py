# SPDX-License-Identifier: Apache-2.0
"""What a field of the project file expects, in the words of those who write it."""

from __future__ import annotations

from typing import Any

# By pydantic's name of the mistake; braces hold a value of its context.
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_pattern_mismatch": "text that matches {pattern}",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section of keys",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
_OTHERS = (("Value error, ", ""), ("Input should be", "expected"))


def expected(item: dict[str, Any]) -> str:
    """What one of pydantic's errors says, in plain words."""
    if known := _EXPECTED.get(item["type"]):
        given = {name: _plain(value) for name, value in item.get("ctx", {}).items()}
        return f"expected {known.format(**given)}"
    message = str(item["msg"])
    for theirs, ours in _OTHERS:
        message = message.replace(theirs, ours)
    return message


def _plain(value: object) -> object:
    """A bound without `.0`."""
    return f"{value:.15g}" if isinstance(value, float) else value

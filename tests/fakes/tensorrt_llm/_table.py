# SPDX-License-Identifier: Apache-2.0
"""What this release takes, from builders/tensorrt_llm/arguments.toml. Not part of the real API.

How the table is read is the stand-in's own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from ._arguments import TEXT
from ._version import __version__

TABLE = tomllib.loads(TEXT)


def _place(version: str) -> tuple[int, ...]:
    major, minor, patch, candidate = re.fullmatch(
        r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?.*", version
    ).groups()  # type: ignore[union-attr]
    return int(major), int(minor), int(patch), 1000 if candidate is None else int(candidate)


def since(version: str) -> bool:
    """Whether this release is that version or a later one."""
    return _place(__version__) >= _place(version)


def present(entry: Mapping[str, Any]) -> bool:
    """Whether this release has what an entry describes."""
    if __version__ in entry.get("unread", ()):
        return True
    return since(entry.get("since", "0.0.0")) and not since(entry.get("gone", "9.0.0"))


def arguments(world: str) -> set[str]:
    """The names of the arguments of LLM()."""
    return {
        name
        for name, entry in TABLE["llm"].items()
        if present(entry) and world in entry.get("worlds", ("engine", "pytorch"))
    }


_PYTHON = {
    "switch": (bool,),
    "whole": (int,),
    "positive": (int,),
    "fraction": (int, float),
    "share": (int, float),
    "number": (int, float),
    "text": (str,),
    "texts": (list,),
    "sizes": (list,),
    "shares": (list,),
    "object": (dict,),
    "names": (dict,),
}


def problem(name: str, entry: Mapping[str, Any], value: Any) -> str | None:
    """Why pydantic would refuse the value of a field."""
    if value is None:
        return None if entry.get("null") else f"{name}: Input should not be None"
    if "class" in entry:
        if not isinstance(value, dict):
            return None  # an object of the class, which has checked itself
        return problem_of_object(name, TABLE["classes"][entry["class"]], value, entry["class"])
    if _listed(entry, value):
        return None
    return _type_problem(name, entry, value)


def _type_problem(name: str, entry: Mapping[str, Any], value: Any) -> str | None:
    if "choices" in entry:
        return f"{name}: Input should be one of {entry['choices']}"
    types = _PYTHON.get(entry.get("type", ""), (object,))
    if not isinstance(value, types) or (isinstance(value, bool) and types != (bool,)):
        return f"{name}: Input should be a valid {types}" if types != (object,) else None
    if "most" in entry and value > entry["most"]:
        return f"{name}: Input should be less than or equal to {entry['most']}"
    return _range_problem(name, entry.get("type"), value)


def _listed(entry: Mapping[str, Any], value: Any) -> bool:
    """Whether a value is one of the words that this release takes."""
    later = [word for at, words in entry.get("more", {}).items() if since(at) for word in words]
    gone = [word for at, words in entry.get("dropped", {}).items() if since(at) for word in words]
    words = (*entry.get("choices", ()), *later)
    return isinstance(value, str) and value in words and value not in gone


def _range_problem(name: str, kind: str | None, value: Any) -> str | None:
    if kind == "fraction" and not 0 <= value <= 1:
        return f"{name} must be between 0 and 1"
    if kind == "share" and not 0 < value <= 1:
        return f"{name}: Input should be greater than 0"
    if kind in ("whole", "number") and value < 0:
        return f"{name}: Input should be greater than or equal to 0"
    if kind == "sizes" and (not value or min(value) < 1):
        return f"{name}: Input should be positive"
    return None


def problem_of_object(
    where: str, fields: Mapping[str, Any], values: Mapping[str, Any], kind: str
) -> str | None:
    """Why pydantic would refuse an object, extra fields among the reasons."""
    partly = next(
        (one.get("partly", ()) for one in TABLE["releases"] if one["version"] == __version__), ()
    )
    for name, value in values.items():
        if name not in fields and kind in partly:
            continue
        if name not in fields or not present(fields[name]):
            return f"{where}.{name}: Extra inputs are not permitted"
        found = problem(f"{where}.{name}", fields[name], value)
        if found:
            return found
    return None

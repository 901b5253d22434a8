# SPDX-License-Identifier: Apache-2.0
"""Recorded arrivals: JSON lines {"at": seconds[, "class", "max_tokens", "text_input"]}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadlib.plan_types import TraceArrival
from loadlib.schema import field_error, validate_object


def read_lines(path: Path, field: str) -> list[str]:
    """Read the lines of a text file. Raises RunRefusedError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise field_error(
            field, f"cannot read {path}: {error.strerror}", "name a readable file"
        ) from error
    except UnicodeDecodeError as error:
        raise field_error(field, f"{path} is not UTF-8: {error}", "save it as UTF-8") from error


def parse_json_line(line: str, location: str) -> Any:
    """Parse a line of JSON. Raises RunRefusedError."""
    try:
        return json.loads(line)
    except ValueError as error:
        raise field_error(
            location, f"not JSON: {error}", "write one JSON object per line"
        ) from error


def read_trace(path: Path, field: str) -> tuple[TraceArrival, ...]:
    """Read the arrivals of a file. Raises RunRefusedError with file and line for a bad one."""
    entries: list[TraceArrival] = []
    for number, line in enumerate(read_lines(path, field), 1):
        if line.strip():
            location = f"{path}:{number}"
            entry = _parse_arrival(parse_json_line(line, location), location)
            if entries and entry.at < entries[-1].at:
                raise field_error(
                    location,
                    f"a negative gap: at {entry.at:g} after {entries[-1].at:g}",
                    "sort the trace by `at`",
                )
            entries.append(entry)
    if not entries:
        raise field_error(field, f"{path}:1: no arrivals", 'write lines like {"at": 0.25}')
    return tuple(entries)


def _parse_arrival(content: Any, location: str) -> TraceArrival:
    fields = validate_object("TraceEntry", content, location)
    return TraceArrival(class_=fields.pop("class"), **fields)

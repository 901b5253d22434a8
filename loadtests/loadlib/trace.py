# SPDX-License-Identifier: Apache-2.0
"""Recorded arrivals: JSON lines {"at": seconds[, "class", "max_tokens", "text_input"]}."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadlib.schema import checked, refused


@dataclass(frozen=True)
class TraceEntry:
    """One arrival; None leaves it to the class of the request."""

    at: float
    class_name: str | None = None
    max_tokens: int | None = None
    text_input: str | None = None


def read_lines(path: Path, field: str) -> list[str]:
    """The lines of a text file; Refusal when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise refused(
            field, f"cannot read {path}: {error.strerror}", "name a readable file"
        ) from error
    except UnicodeDecodeError as error:
        raise refused(field, f"{path} is not UTF-8: {error}", "save it as UTF-8") from error


def json_line(line: str, where: str) -> Any:
    """The JSON on a line; Refusal when it is not JSON."""
    try:
        return json.loads(line)
    except ValueError as error:
        raise refused(where, f"not JSON: {error}", "write one JSON object per line") from error


def read_trace(file: str, field: str) -> tuple[TraceEntry, ...]:
    """All arrivals of a file; Refusal with file and line where one is wrong."""
    entries: list[TraceEntry] = []
    path = Path(file)
    for number, line in enumerate(read_lines(path, field), 1):
        if line.strip():
            where = f"{path}:{number}"
            entry = _entry(json_line(line, where), where)
            if entries and entry.at < entries[-1].at:
                raise refused(
                    where,
                    f"a negative gap: at {entry.at:g} after {entries[-1].at:g}",
                    "sort the trace by `at`",
                )
            entries.append(entry)
    if not entries:
        raise refused(field, f"{path}:1: no arrivals", 'write lines like {"at": 0.25}')
    return tuple(entries)


def _entry(content: Any, where: str) -> TraceEntry:
    fields = checked("TraceEntry", content, where)
    return TraceEntry(class_name=fields.pop("class"), **fields)

# SPDX-License-Identifier: Apache-2.0
"""The generators' request records: JSON lines, times in microseconds since the run's start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tritonctl.errors import ConfigurationError
from tritonctl.project.expected import reason

PLAN, FACTS, RECORDS = "plan.json", "facts.json", "records.jsonl"
PROGRESS, SERVER = "progress.jsonl", "server.jsonl"
_WORKER_FILES = "records-*.jsonl"
_REMEDY = (
    "a truncated line is accepted only at the end of a file: remove this line, or run the load "
    "test again"
)

Outcome = Literal["ok", "error", "cancelled", "timeout", "abandoned"]


class _RecordModel(BaseModel):
    # Ignore fields of newer generators.
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class RecordedError(_RecordModel):
    """The reason why a request failed."""

    kind: str
    message: str = ""


class LoadRecord(_RecordModel):
    """One request: its planned and sent times, a time per response with tokens, and its outcome."""

    index: int = Field(alias="i")
    class_name: str = Field(alias="class")
    planned: int
    sent: int
    at: tuple[int, ...] = ()
    tokens: tuple[int, ...] | None = Field(None, alias="n")
    end: int
    outcome: Outcome
    error: RecordedError | None = None
    input_tokens: int | None = Field(None, alias="in")
    output_tokens: int | None = Field(None, alias="out")
    worker: int = 0
    session: str | int | None = None
    turn: int | None = None
    user: str | None = None
    version: str | None = None  # of the model that answered last: the release's number
    resumes: int = 0  # after broken connections
    uncounted: bool = False  # without num_output_tokens: each response counts as one token

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.tokens is not None and len(self.tokens) != len(self.at):
            raise ValueError(
                f"{len(self.at)} responses (at), but {len(self.tokens)} token counts (n)"
            )
        times = (self.sent, *self.at, self.end)
        if any(later < earlier for earlier, later in pairwise(times)):
            raise ValueError("sent, at, end are not in chronological order")
        return self


def record_files(folder: Path) -> list[Path]:
    """Return the merged file, or the workers' files if the run was killed before the merge."""
    merged = folder / RECORDS
    return [merged] if merged.is_file() else sorted(folder.glob(_WORKER_FILES))


def read_records(folder: Path) -> list[LoadRecord]:
    """Read all records of a run in plan order. Raises ConfigurationError."""
    files = record_files(folder)
    if not files:
        raise ConfigurationError(
            f"{folder} has no {RECORDS}: it is not a load test folder, or nothing was sent",
            remedy="name a folder of .tritonctl/loadtests/, or run `tritonctl loadtest run`",
        )
    records = [record for file in files for record in _parse_records(file)]
    return sorted(records, key=lambda record: (record.planned, record.index))


def _parse_records(path: Path) -> Iterator[LoadRecord]:
    for number, line in _complete_lines(path):
        try:
            yield LoadRecord.model_validate_json(line)
        except ValidationError as error:
            raise ConfigurationError(f"{path}:{number}: {reason(error)}", remedy=_REMEDY) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON-lines file; empty if it does not exist.

    Raises ConfigurationError.
    """
    if not path.is_file():
        return []
    return [_parse_object(path, number, line) for number, line in _complete_lines(path)]


def _parse_object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{path}:{number}: {error}", remedy=_REMEDY) from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}:{number}: not a JSON object", remedy=_REMEDY)
    return value


def _complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines; skip a truncated last one: its writer may have been killed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}", remedy="check the file's permissions"
        ) from error
    *lines, tail = content.split(b"\n")
    yield from ((n, line) for n, line in enumerate(lines, start=1) if line.strip())
    with suppress(ValueError):
        json.loads(tail)
        yield len(lines) + 1, tail

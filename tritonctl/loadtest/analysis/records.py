# SPDX-License-Identifier: Apache-2.0
"""What the generator recorded of each request: JSON lines, times in microseconds of the run."""

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
_BY_WORKER = "records-*.jsonl"
_REMEDY = (
    "lines that a killed generator cut off are left out only at the end of a file: move this "
    "line out of it, or run the load test again"
)

Outcome = Literal["ok", "error", "cancelled", "timeout", "abandoned"]


class _Read(BaseModel):
    # Additive: a newer generator may tell more.
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class RequestError(_Read):
    """Why a request failed."""

    kind: str
    message: str = ""


class Record(_Read):
    """One request: planned and sent when, a time for each response with tokens, how it ended.

    version: of the model that answered last, the release's number. resumes: how often the answer
    broke and went on.
    """

    index: int = Field(alias="i")
    class_name: str = Field(alias="class")
    planned: int
    sent: int
    at: tuple[int, ...] = ()
    tokens: tuple[int, ...] | None = Field(None, alias="n")
    end: int
    outcome: Outcome
    error: RequestError | None = None
    input_tokens: int | None = Field(None, alias="in")
    output_tokens: int | None = Field(None, alias="out")
    worker: int = 0
    session: str | int | None = None
    turn: int | None = None
    user: str | None = None
    version: str | None = None
    resumes: int = 0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.tokens is not None and len(self.tokens) != len(self.at):
            raise ValueError(f"{len(self.at)} responses (at), token counts (n) of another number")
        times = (self.sent, *self.at, self.end)
        if any(later < earlier for earlier, later in pairwise(times)):
            raise ValueError("sent, at, end are not in the order of time")
        return self


def record_files(folder: Path) -> list[Path]:
    """The merged file, or one per worker where the run was killed before it was made."""
    merged = folder / RECORDS
    return [merged] if merged.is_file() else sorted(folder.glob(_BY_WORKER))


def read_records(folder: Path) -> list[Record]:
    """Every record of a run, in the order of the plan. Raises ConfigurationError."""
    files = record_files(folder)
    if not files:
        raise ConfigurationError(
            f"{folder} holds no {RECORDS}: it is no folder of a load test, or nothing was sent",
            remedy="name a folder of .tritonctl/loadtests/, or run `tritonctl loadtest run`",
        )
    records = [record for file in files for record in _records(file)]
    return sorted(records, key=lambda record: (record.planned, record.index))


def _records(path: Path) -> Iterator[Record]:
    for number, line in _whole_lines(path):
        try:
            yield Record.model_validate_json(line)
        except ValidationError as error:
            raise ConfigurationError(f"{path}:{number}: {reason(error)}", remedy=_REMEDY) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a JSON-lines file, none where it does not exist.

    Raises ConfigurationError.
    """
    if not path.is_file():
        return []
    return [_object(path, number, line) for number, line in _whole_lines(path)]


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{path}:{number}: {error}", remedy=_REMEDY) from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}:{number}: not a JSON object", remedy=_REMEDY)
    return value


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; the last one only when it is whole: its writer may have been killed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}", remedy="check the file's permissions"
        ) from error
    *lines, rest = content.split(b"\n")
    yield from ((n, line) for n, line in enumerate(lines, start=1) if line.strip())
    with suppress(ValueError):
        json.loads(rest)
        yield len(lines) + 1, rest

# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: create it, merge the workers' records, append lines during a run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from tritonctl.errors import UsageError
from tritonctl.host.files import as_host_error, write_atomically
from tritonctl.loadtest.analysis.records import RECORDS
from tritonctl.project.schema import Project

# Folders of the project's state: one per run, one per search with its runs inside.
RUNS, SEARCHES = "loadtests", "capacity"


def create_run_folder(
    project: Project, scenario: str, output: Path | None = None, *, kind: str = RUNS
) -> Path:
    """Create an empty folder: `output`, else one in the project, named after time and scenario.

    Raises UsageError when `output` is not empty.
    """
    if output is not None:
        with as_host_error(output):
            output.mkdir(parents=True, exist_ok=True)
            if any(output.iterdir()):
                raise UsageError(
                    f"{output} is not empty", remedy="name a new folder, or drop --output"
                )
        return output.resolve()
    parent = project.state / kind
    with as_host_error(parent):
        parent.mkdir(parents=True, exist_ok=True)
        for name in _candidate_names(scenario):
            try:
                (parent / name).mkdir()
            except FileExistsError:
                continue
            break
    return parent / name


def _candidate_names(scenario: str) -> Iterator[str]:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{scenario}"
    yield name
    for number in count(2):
        yield f"{name}-{number}"


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file atomically. Raises HostError."""
    write_atomically(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def merge_records(folder: Path, workers: int) -> None:
    """Merge all workers' records into `records.jsonl` in plan order. Raises HostError.

    Removes the workers' files. Skips a truncated last line (killed writer, full disk).
    """
    lines: list[tuple[int, int, str]] = []
    parts = [folder / f"records-{worker}.jsonl" for worker in range(workers)]
    for part in parts:
        lines += _parse_records(part)
    lines.sort()
    write_atomically(folder / RECORDS, "".join(f"{line}\n" for _, _, line in lines))
    for part in parts:
        part.unlink(missing_ok=True)


def _parse_records(file: Path) -> Iterator[tuple[int, int, str]]:
    """Yield (planned, index, line) of each complete line."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # the worker was killed before it started
        return
    for line in text.splitlines():
        try:
            record = json.loads(line)
            yield int(record["planned"]), int(record["i"]), line
        except (ValueError, KeyError, TypeError):
            continue


class JsonLinesWriter:
    """Appends to a JSON-lines file during a run without ever stopping it.

    `error` holds the first error (a full disk); later lines are dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.error: OSError | None = None

    def write(self, text: str) -> None:
        """Append a line without buffering."""
        if self.error is not None:
            return
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.write(self._file, f"{text}\n".encode())
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

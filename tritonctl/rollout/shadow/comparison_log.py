# SPDX-License-Identifier: Apache-2.0
"""The shadower's results: a line per question in `.tritonctl/rollouts/<n>/shadow.jsonl`.

A line has numbers and a few words that quote nothing. Recorded prompts are in a separate file that
only its owner may read. `shadow-counts.json` counts what happened to all copies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.host.files import PRIVATE
from tritonctl.rollout.measures import AnswerTimes, Measurement
from tritonctl.rollout.metrics import Distances

LINES, COUNTS, PROMPTS = "shadow.jsonl", "shadow-counts.json", "shadow-prompts.jsonl"
_MAX_BYTES = 64 << 20  # of each file; further records are dropped


@dataclass(frozen=True)
class ComparisonRecord:
    """The measurement of one question."""

    at: float  # seconds since 1970
    model: str
    task: str
    measurement: Measurement

    def line(self) -> str:
        """Return the line with its newline."""
        measurement = self.measurement
        record: dict[str, Any] = {
            "at": round(self.at, 3),
            "model": self.model,
            "task": self.task,
            "noise": round(measurement.noise, 6),
            "candidate": round(measurement.candidate, 6),
            "differs": list(measurement.differs),
            "note": measurement.note,
            "figures": {name: list(pair) for name, pair in measurement.figures.items()},
        }
        if measurement.times is not None:
            record["first_ms"], record["whole_ms"] = (
                measurement.times.first,
                measurement.times.complete,
            )
        return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def of(cls, line: bytes) -> ComparisonRecord | None:
        """Parse a line; None if it is torn or malformed."""
        try:
            record = json.loads(line)
            times = None
            if "whole_ms" in record:
                times = AnswerTimes(_triple(record["first_ms"]), _triple(record["whole_ms"]))
            noise, candidate = float(record["noise"]), float(record["candidate"])
            if not (0 <= noise <= 1 and 0 <= candidate <= 1):
                return None
            noise_differs, candidate_differs = record["differs"]
            figures = {str(name): (a, b) for name, (a, b) in record["figures"].items()}
            measurement = Measurement(
                noise,
                candidate,
                (bool(noise_differs), bool(candidate_differs)),
                str(record["note"]),
                figures,
                times,
            )
            return cls(float(record["at"]), str(record["model"]), str(record["task"]), measurement)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def _triple(values: Any) -> Any:
    first, second, third = values
    return first, second, third


class LogTail:
    """Reads new lines of the log in a rollout's folder, from a byte offset."""

    def __init__(self, folder: Path, offset: int = 0) -> None:
        self._file = folder / LINES
        self.offset = offset

    def new_distances(self) -> list[Distances]:
        """Return the distances since the last call, from complete lines. Never raises OSError."""
        try:
            with self._file.open("rb") as file:
                file.seek(self.offset)
                content = file.read(_MAX_BYTES)
        except OSError:
            return []
        complete_bytes = content.rfind(b"\n") + 1
        self.offset += complete_bytes
        records = (
            ComparisonRecord.of(line) for line in content[:complete_bytes].split(b"\n") if line
        )
        return [
            Distances(record.measurement.noise, record.measurement.candidate)
            for record in records
            if record is not None
        ]


def read_comparison_records(folder: Path) -> Iterator[ComparisonRecord]:
    """Yield all records of a rollout."""
    try:
        with (folder / LINES).open("rb") as file:
            for line in file:
                if (record := ComparisonRecord.of(line)) is not None:
                    yield record
    except FileNotFoundError:
        return


@dataclass
class ShadowCounts:
    """The number of copies, compared ones, and skipped ones."""

    copies: int = 0
    compared: int = 0
    left: dict[str, int] = field(default_factory=dict)  # skipped, by reason

    def count_skipped(self, reason: str) -> None:
        """Count a copy that is not compared."""
        self.left[reason] = self.left.get(reason, 0) + 1

    @classmethod
    def read(cls, folder: Path) -> ShadowCounts:
        """Read the last written counts; zeros without a file."""
        try:
            record = json.loads((folder / COUNTS).read_text(encoding="utf-8"))
            skipped = {str(reason): int(count) for reason, count in record["left"].items()}
            return cls(int(record["copies"]), int(record["compared"]), skipped)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()


class ComparisonLog:
    """Append-only files of limited size; only the shadower writes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, record: ComparisonRecord) -> None:
        """Append the record of a question. Raises OSError, for example for a full disk."""
        self._append(LINES, record.line())

    def add_prompt(self, record: Mapping[str, Any]) -> None:
        """Append a prompt and its answers. Raises OSError."""
        self._append(PROMPTS, json.dumps(record, ensure_ascii=False) + "\n")

    def _append(self, name: str, line: str) -> None:
        handle = os.open(
            self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE
        )
        try:
            size = os.fstat(handle).st_size
            if size + len(line) > _MAX_BYTES:
                return
            # A crash may have left a partial line: end it.
            is_torn = size > 0 and not _ends_with_newline(self._folder / name)
            os.write(handle, (("\n" if is_torn else "") + line).encode("utf-8", "surrogatepass"))
        finally:
            os.close(handle)


def _ends_with_newline(file: Path) -> bool:
    with file.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        return opened.read(1) == b"\n"

# SPDX-License-Identifier: Apache-2.0
"""What the shadower finds: a line for each question in `.tritonctl/rollouts/<n>/shadow.jsonl`.

A line has numbers and a few words that quote nothing. Where prompts are kept, they are in a file of
their own that only its owner may read. `shadow-counts.json` says what became of all copies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.host.files import PRIVATE
from tritonctl.rollout.measures import Measured, Times
from tritonctl.rollout.metrics import Distances

LINES, COUNTS, KEPT = "shadow.jsonl", "shadow-counts.json", "shadow-prompts.jsonl"
_MOST_BYTES = 64 << 20  # of each file; what is found later is not written


@dataclass(frozen=True)
class Found:
    """One question. at: seconds since 1970."""

    at: float
    model: str
    task: str
    measured: Measured

    def line(self) -> str:
        """As it is written, with its end."""
        one = self.measured
        record: dict[str, Any] = {
            "at": round(self.at, 3),
            "model": self.model,
            "task": self.task,
            "noise": round(one.noise, 6),
            "candidate": round(one.candidate, 6),
            "differs": list(one.differs),
            "note": one.note,
            "figures": {name: list(pair) for name, pair in one.figures.items()},
        }
        if one.times is not None:
            record["first_ms"], record["whole_ms"] = one.times.first, one.times.whole
        return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def of(cls, line: bytes) -> Found | None:
        """What a line says; None of one that is torn or is none."""
        try:
            record = json.loads(line)
            times = None
            if "whole_ms" in record:
                times = Times(_three(record["first_ms"]), _three(record["whole_ms"]))
            noise, candidate = float(record["noise"]), float(record["candidate"])
            if not (0 <= noise <= 1 and 0 <= candidate <= 1):
                return None
            one, other = record["differs"]
            figures = {str(name): (a, b) for name, (a, b) in record["figures"].items()}
            measured = Measured(
                noise, candidate, (bool(one), bool(other)), str(record["note"]), figures, times
            )
            return cls(float(record["at"]), str(record["model"]), str(record["task"]), measured)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def _three(values: Any) -> Any:
    first, second, third = values
    return first, second, third


class News:
    """The lines that are new, for who judges. folder: of the rollout. offset: bytes read so far."""

    def __init__(self, folder: Path, offset: int = 0) -> None:
        self._file = folder / LINES
        self.offset = offset

    def news(self) -> list[Distances]:
        """Of the questions since the last call; only whole lines count. Never raises OSError."""
        try:
            with self._file.open("rb") as file:
                file.seek(self.offset)
                content = file.read(_MOST_BYTES)
        except OSError:
            return []
        whole = content.rfind(b"\n") + 1
        self.offset += whole
        found = (Found.of(line) for line in content[:whole].split(b"\n") if line)
        return [
            Distances(one.measured.noise, one.measured.candidate)
            for one in found
            if one is not None
        ]


def read_found(folder: Path) -> Iterator[Found]:
    """All lines of a rollout."""
    try:
        with (folder / LINES).open("rb") as file:
            for line in file:
                if (one := Found.of(line)) is not None:
                    yield one
    except FileNotFoundError:
        return


@dataclass
class Counts:
    """What became of the copies: compared, or left, by why."""

    copies: int = 0
    compared: int = 0
    left: dict[str, int] = field(default_factory=dict)

    def leave(self, why: str) -> None:
        """One that is not compared."""
        self.left[why] = self.left.get(why, 0) + 1

    @classmethod
    def read(cls, folder: Path) -> Counts:
        """As they were written last; zeros without any."""
        try:
            record = json.loads((folder / COUNTS).read_text(encoding="utf-8"))
            left = {str(why): int(count) for why, count in record["left"].items()}
            return cls(int(record["copies"]), int(record["compared"]), left)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()


class Lines:
    """Files that are only added to, within bounds. Made by the shadower alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, found: Found) -> None:
        """What one question has shown. Raises OSError, such as for a full disk."""
        self._append(LINES, found.line())

    def keep(self, record: Mapping[str, Any]) -> None:
        """A prompt and its answers, as JSON holds them. Raises OSError."""
        self._append(KEPT, json.dumps(record, ensure_ascii=False) + "\n")

    def _append(self, name: str, line: str) -> None:
        handle = os.open(
            self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE
        )
        try:
            size = os.fstat(handle).st_size
            if size + len(line) > _MOST_BYTES:
                return
            # A crash may have left half a line: it gets its end.
            torn = size > 0 and not _ends(self._folder / name)
            os.write(handle, (("\n" if torn else "") + line).encode("utf-8", "surrogatepass"))
        finally:
            os.close(handle)


def _ends(file: Path) -> bool:
    with file.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        return opened.read(1) == b"\n"

# SPDX-License-Identifier: Apache-2.0
"""A record for each request: JSON lines, written when it ends, flushed each second.

On a full disk the measurement goes on: the file keeps whole lines, the lost ones are counted.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from loadlib.failures import Failure
from loadlib.progress import Meter
from loadlib.refusal import Refusal
from loadlib.workload import PlannedRequest


class Flight:
    """A request that was sent; times in microseconds since the start."""

    __slots__ = (
        "at",
        "end",
        "error",
        "input_tokens",
        "n",
        "outcome",
        "planned",
        "request",
        "resumes",
        "sent",
        "turn",
        "user",
        "version",
    )

    def __init__(self, request: PlannedRequest, turn: int, planned: int, sent: int) -> None:
        self.request = request
        self.turn = turn
        self.planned = planned
        self.sent = sent
        self.at: list[int] = []
        self.n: list[int] = []
        self.input_tokens: int | None = None
        self.end = 0
        self.outcome = ""
        self.error: Failure | None = None
        self.user: str | None = None
        self.version = ""
        self.resumes = 0


def _line(flight: Flight, worker: int, text: bool) -> str:
    """The record as JSON, formatted by hand in a third of the time of json.dumps."""
    request = flight.request
    session = request.session
    counts = f',"n":{_numbers(flight.n)}' if any(n != 1 for n in flight.n) else ""
    error = (
        f',"error":{json.dumps({"kind": flight.error.kind, "message": flight.error.message})}'
        if flight.error
        else ""
    )
    who = f',"user":{json.dumps(flight.user)}' if flight.user is not None else ""
    if flight.version:
        who += f',"version":{json.dumps(flight.version)}'
    if flight.resumes:
        who += f',"resumes":{flight.resumes}'
    return (
        f'{{"i":{request.index},"class":{json.dumps(request.request_class.name)},'
        f'"planned":{flight.planned},"sent":{flight.sent},"at":{_numbers(flight.at)}{counts},'
        f'"end":{flight.end},"outcome":"{flight.outcome}"{error},'
        f'"in":{_or_null(flight.input_tokens)},"out":{sum(flight.n) if text else "null"},'
        f'"worker":{worker},"session":{_or_null(session)},'
        f'"turn":{flight.turn if session is not None else "null"}{who}}}\n'
    )


def _numbers(values: list[int]) -> str:
    return f"[{','.join(map(str, values))}]"


def _or_null(value: int | None) -> str:
    return "null" if value is None else str(value)


class Records(Protocol):
    """Takes records, a line each."""

    def add(self, line: str) -> None:
        """Keep a line for the next flush."""


class RecordFile:
    """Appends whole lines. `failure`: why writing failed; `lost`: lines that were not written."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._waiting: list[str] = []
        self._size = 0
        self.failure: OSError | None = None
        self.lost = 0

    def add(self, line: str) -> None:
        """Keep a line for the next flush."""
        self._waiting.append(line)

    def flush(self) -> None:
        """Write what waits, also after a failure: there may be space again."""
        content, self._waiting = "".join(self._waiting).encode(), []
        written = 0
        try:
            while written < len(content):
                written += os.write(self._fd, content[written:])
        except OSError as error:
            self.failure = error
            self.lost += content.count(b"\n") - content.count(b"\n", 0, written)
            self._keep_whole_lines(content[:written])
        else:
            self._size += written

    def _keep_whole_lines(self, written: bytes) -> None:
        self._size += written.rfind(b"\n") + 1
        # A device or pipe has no length; readers skip a last line that is cut off.
        with suppress(OSError):
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        os.close(self._fd)


def check_writable(folder: Path) -> None:
    """Make the folder of the records; Refusal where nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"cannot make the folder {folder}: {error.strerror}",
            remedy="name another --output, or make room",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refusal(f"cannot write into {folder}", remedy="name another --output")


class Recorder:
    """Writes the records of the engine's requests, and counts them."""

    def __init__(self, records: Records, meter: Meter, *, worker: int, text: bool) -> None:
        self._records = records
        self._meter = meter
        self._worker = worker
        self._text = text

    def sent(self, request: PlannedRequest, turn: int, planned: int, now_us: int) -> Flight:
        """A request goes out now."""
        self._meter.sent(now_us - planned, first=turn == 0)
        return Flight(request, turn, planned, now_us)

    def responded(self, flight: Flight, tokens: int, now_us: int) -> None:
        """A response came; one without tokens counts nowhere."""
        if tokens > 0:
            before = flight.at[-1] if flight.at else flight.planned
            self._meter.responded(tokens, now_us - before, first=not flight.at)
            flight.at.append(now_us)
            flight.n.append(tokens)

    def ended(
        self, flight: Flight, outcome: str, now_us: int, error: Failure | None = None
    ) -> None:
        """It ended: ok, error, cancelled, timeout or abandoned."""
        flight.end, flight.outcome, flight.error = now_us, outcome, error
        self._meter.ended(outcome, now_us - flight.planned)
        self._records.add(_line(flight, self._worker, self._text))

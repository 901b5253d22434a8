# SPDX-License-Identifier: Apache-2.0
"""What a rollout has done, a line each: `.tritonctl/rollouts/<n>/journal.jsonl`, only added to.

A line is on the disk before what it says is done, so that whoever comes after a crash of the
controller knows where it stood: `read` and `replay`. A last line that is torn was never acted upon.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host.files import explained, if_free
from tritonctl.project.expected import reason
from tritonctl.project.rollout import Rollout
from tritonctl.server.slots import CONTROLLER_LOCK

JOURNAL = "journal.jsonl"
_HOLDER = "controller.json"  # who has the lock, for the message of a second one
_TRIES, _TRY_SECONDS = 5, 0.01


class Event(StrEnum):
    """What a line says."""

    STARTED = "started"  # releases and settings; the candidate is about to be loaded
    LOADED = "loaded"  # it is ready, and which times are counted; nobody is moved yet
    STEP = "step"  # the candidate has the users of this step from now on
    DECISION = "decision"  # the judge's, with its figures
    PAUSED = "paused"  # by hand
    RESUMED = "resumed"
    ROLLED_BACK = "rolled_back"  # stable is about to have all users again; also after a promotion
    PROMOTED = "promoted"  # the candidate is about to have all users, as the new stable
    MOVED = "moved"  # after each of these: it is done, and whether the gateway has read it
    CLOSED = "closed"  # the version that was kept warm is unloaded


class Phase(StrEnum):
    """Where a rollout stands."""

    STARTING = "starting"
    STEPPING = "stepping"
    HOLDING = "holding"
    ROLLED_BACK = "rolled_back"
    PROMOTED = "promoted"


ENDED = frozenset({Phase.ROLLED_BACK, Phase.PROMOTED})
_AFTER_THE_END = frozenset({Event.ROLLED_BACK, Event.MOVED, Event.CLOSED})


@dataclass(frozen=True)
class Entry:
    """A line. `at`: seconds since 1970. `about`: what the event needs, as JSON holds it."""

    at: float
    event: Event
    about: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """As it is written, with its end."""
        record = {"at": round(self.at, 3), "event": self.event.value, **self.about}
        return json.dumps(record, separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class State:
    """What a journal amounts to. `step`: the last one, None before the first.

    since: the step's, or the end's. about: what `started` and `loaded` said. last: the judge's
    latest decision. end: what `rolled_back` or `promoted` said. moved: whether that, or the step,
    is done. closed: nothing is left.
    """

    phase: Phase
    about: Mapping[str, Any]
    step: int | None = None
    since: float | None = None
    last: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    loaded: bool = False
    promoted: bool = False
    end: Mapping[str, Any] = field(default_factory=dict)
    moved: bool = False
    closed: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do but to unload one of the two."""
        return self.phase in ENDED


class Journal:
    """An open journal, of the one controller. Made by `controlling`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, entry: Entry) -> None:
        """On the disk when this returns. Raises HostError, such as for a full disk."""
        with explained(Path(self._file.name)):
            self._file.write(entry.line().encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def remove(self) -> None:
        """Of a rollout that has not begun. Raises HostError."""
        file = Path(self._file.name)
        with explained(file):
            file.unlink()


def controller_of(rollouts: Path) -> str | None:
    """The process id of the controller that runs, as far as it is known; None without one."""
    if not (rollouts / CONTROLLER_LOCK).exists():
        return None
    with ExitStack() as held:
        return None if _taken(rollouts, held) else _holder(rollouts)


def _taken(rollouts: Path, held: ExitStack) -> bool:
    """Whether the lock is ours; who only looks whether there is a controller has it for no time."""
    for _ in range(_TRIES):
        with ExitStack() as tried:
            if tried.enter_context(if_free(rollouts / CONTROLLER_LOCK)):
                held.push(tried.pop_all())
                return True
        time.sleep(_TRY_SECONDS)
    return False


@contextmanager
def controlling(rollouts: Path, number: int) -> Iterator[tuple[Journal, list[Entry]]]:
    """The journal of a rollout for whoever controls it, and what it holds already.

    rollouts: `.tritonctl/rollouts`; there is one controller in all of it. Raises HostError when
    another one runs, ConfigurationError for a damaged journal.
    """
    with ExitStack() as held:
        if not _taken(rollouts, held):
            raise HostError(
                f"another controller runs a rollout: process {_holder(rollouts)}",
                remedy="watch it: tritonctl rollout status; or stop it first",
            )
        folder = rollouts / str(number)
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (rollouts / _HOLDER).write_text(json.dumps({"pid": os.getpid()}), encoding="utf-8")
            with (folder / JOURNAL).open("a+b") as file:
                _cut_torn_line(file)
                _sync_folder(folder)
                yield Journal(file), read(folder)


def read(folder: Path) -> list[Entry]:
    """All lines of a rollout's journal but a torn last one; [] without a journal.

    Raises ConfigurationError for any other line that is none.
    """
    file = folder / JOURNAL
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror}", remedy=f"make {file} readable"
        ) from error
    return [_entry(line, file, number) for number, line in enumerate(_whole(content), start=1)]


def replay(entries: Sequence[Entry]) -> State | None:
    """Where a rollout stands after these lines; None without any."""
    state: State | None = None
    for entry in entries:
        state = after(state, entry)
    return state


def after(state: State | None, entry: Entry) -> State | None:
    """Where it stands after one more line.

    A line that does not fit what is known is passed over: what was rolled back stays so.
    """
    if entry.event is Event.STARTED:
        return State(Phase.STARTING, entry.about)
    if state is None or (state.ended and entry.event not in _AFTER_THE_END):
        return state
    return _after(state, entry)


def settings_of(about: Mapping[str, Any]) -> Rollout:
    """The settings that a rollout was started with, of what `started` said.

    Raises ConfigurationError for a journal that does not hold them.
    """
    try:
        return Rollout.model_validate(about["settings"])
    except (KeyError, ValidationError) as error:
        why = reason(error) if isinstance(error, ValidationError) else "it has none"
        raise ConfigurationError(
            f"the journal does not hold this rollout's settings: {why}",
            remedy="start a rollout: tritonctl rollout start RELEASE",
        ) from error


def latest(rollouts: Path) -> int | None:
    """The number of the last rollout that has a journal; None without any."""
    numbers = [int(file.parent.name) for file in rollouts.glob(f"*/{JOURNAL}") if _numbered(file)]
    return max(numbers, default=None)


def _numbered(file: Path) -> bool:
    return file.parent.name.isascii() and file.parent.name.isdigit()


def _after(state: State, entry: Entry) -> State:
    return replace(state, **_changes(state, entry))


def _changes(state: State, entry: Entry) -> dict[str, Any]:
    reason = str(entry.about.get("reason", ""))
    found: dict[str, Any] = {}
    match entry.event:
        case Event.LOADED:
            found = {"loaded": True, "about": {**state.about, **entry.about}}
        case Event.STEP:
            step = int(entry.about["step"])
            found = {"phase": Phase.STEPPING, "step": step, "since": entry.at, "reason": ""}
            found["moved"] = False
        case Event.DECISION:
            found = {"last": entry.about}
        case Event.PAUSED:
            found = {"phase": Phase.HOLDING, "reason": reason}
        case Event.RESUMED:
            phase = Phase.STARTING if state.step is None else Phase.STEPPING
            found = {"phase": phase, "reason": ""}
        case Event.ROLLED_BACK | Event.PROMOTED if state.phase is not Phase.ROLLED_BACK:
            found = {"phase": Phase(entry.event.value), "since": entry.at, "reason": reason}
            found |= {"end": entry.about, "moved": False, "closed": False}
            found["promoted"] = state.promoted or entry.event is Event.PROMOTED
        case Event.MOVED:
            found = {"moved": True}
        case Event.CLOSED:
            found = {"closed": True}
    return found


def _whole(content: bytes) -> list[bytes]:
    """Lines that have their end."""
    return content.split(b"\n")[:-1]


def _entry(line: bytes, file: Path, number: int) -> Entry:
    try:
        record = json.loads(line)
        at, event = float(record.pop("at")), Event(record.pop("event"))
        if event is Event.STEP:
            int(record["step"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{file}:{number} is no line of a journal: {line[:60]!r}",
            remedy="the disk may have lost it: roll back by hand with tritonctl rollout abort, "
            "and start anew",
            details=str(error),
        ) from error
    return Entry(at, event, record)


def _cut_torn_line(file: IO[bytes]) -> None:
    """Of a write that a crash has cut: what it says was never done."""
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        file.truncate(whole)
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """So that the new file's name outlives a crash, too; other systems do so by themselves."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _holder(rollouts: Path) -> str:
    try:
        return str(json.loads((rollouts / _HOLDER).read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"

# SPDX-License-Identifier: Apache-2.0
"""The append-only journal of a rollout: `.tritonctl/rollouts/<n>/journal.jsonl`, a line per event.

Each line is on disk before its action starts, so a restarted controller can restore the state:
`read_journal` and `replay`. A torn last line was never acted upon.
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
from tritonctl.host.files import as_host_error, try_exclusive
from tritonctl.project.expected import reason
from tritonctl.project.rollout import Rollout
from tritonctl.releases.slots import CONTROLLER_LOCK

JOURNAL = "journal.jsonl"
_HOLDER = "controller.json"  # the lock holder, for error messages
_TRIES, _TRY_SECONDS = 5, 0.01


class JournalEvent(StrEnum):
    """The event of a journal line."""

    STARTED = "started"  # has releases and settings; the candidate loads next
    LOADED = "loaded"  # it is ready; has the available metrics; no user has moved
    STEP = "step"  # the users of this step move to the candidate next
    DECISION = "decision"  # the judge's, with its figures
    PAUSED = "paused"  # by hand
    RESUMED = "resumed"
    ROLLED_BACK = "rolled_back"  # all users move to stable next; also after a promotion
    PROMOTED = "promoted"  # all users move to the candidate next, as the new stable
    MOVED = "moved"  # the preceding move is done; has whether the gateway read it
    CLOSED = "closed"  # the warm version is unloaded


class RolloutPhase(StrEnum):
    """The phase of a rollout."""

    STARTING = "starting"
    STEPPING = "stepping"
    HOLDING = "holding"
    ROLLED_BACK = "rolled_back"
    PROMOTED = "promoted"


FINAL_PHASES = frozenset({RolloutPhase.ROLLED_BACK, RolloutPhase.PROMOTED})
_EVENTS_AFTER_OUTCOME = frozenset(
    {JournalEvent.ROLLED_BACK, JournalEvent.MOVED, JournalEvent.CLOSED}
)


@dataclass(frozen=True)
class JournalEntry:
    """A line of the journal."""

    at: float  # seconds since 1970
    event: JournalEvent
    details: Mapping[str, Any] = field(default_factory=dict)  # JSON values

    def line(self) -> str:
        """Return the line with its newline."""
        record = {"at": round(self.at, 3), "event": self.event.value, **self.details}
        return json.dumps(record, separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class RolloutState:
    """The state of a rollout after its journal entries."""

    phase: RolloutPhase
    details: Mapping[str, Any]  # of `started` and `loaded`
    step: int | None = None  # the last one; None before the first
    since: float | None = None  # start of the step or time of the outcome, seconds since 1970
    last_decision: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    loaded: bool = False
    promoted: bool = False
    outcome: Mapping[str, Any] = field(default_factory=dict)  # of `rolled_back` or `promoted`
    moved: bool = False  # whether the users' move of the step or outcome is done
    confirmed: bool = False  # whether the gateway served that move
    closed: bool = False  # whether the rollout is complete

    @property
    def is_over(self) -> bool:
        """Whether the rollout has an outcome; at most one version remains to be unloaded."""
        return self.phase in FINAL_PHASES


class Journal:
    """An open journal; `open_journal` creates it for the single controller."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, entry: JournalEntry) -> None:
        """Append an entry durably. Raises HostError, for example for a full disk."""
        with as_host_error(Path(self._file.name)):
            self._file.write(entry.line().encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def remove(self) -> None:
        """Delete the journal of a rollout that did not start. Raises HostError."""
        file = Path(self._file.name)
        with as_host_error(file):
            file.unlink()


def controller_of(rollouts: Path) -> str | None:
    """Return the process id of the running controller, or "unknown"; None if none runs."""
    if not (rollouts / CONTROLLER_LOCK).exists():
        return None
    with ExitStack() as held:
        return None if _acquire_lock(rollouts, held) else _holder(rollouts)


def _acquire_lock(rollouts: Path, held: ExitStack) -> bool:
    """Try to take the lock; retry, since processes hold it briefly to look for a controller."""
    for _ in range(_TRIES):
        with ExitStack() as tried:
            if tried.enter_context(try_exclusive(rollouts / CONTROLLER_LOCK)):
                held.push(tried.pop_all())
                return True
        time.sleep(_TRY_SECONDS)
    return False


@contextmanager
def open_journal(rollouts: Path, number: int) -> Iterator[tuple[Journal, list[JournalEntry]]]:
    """Lock a rollout for its controller; yield its journal and the existing entries.

    rollouts: `.tritonctl/rollouts`, which has one controller at a time. Raises HostError if another
    controller runs, ConfigurationError for a damaged journal.
    """
    with ExitStack() as held:
        if not _acquire_lock(rollouts, held):
            raise HostError(
                f"another controller runs a rollout: process {_holder(rollouts)}",
                remedy="watch it: tritonctl rollout status; or stop it first",
            )
        folder = rollouts / str(number)
        with as_host_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (rollouts / _HOLDER).write_text(json.dumps({"pid": os.getpid()}), encoding="utf-8")
            with (folder / JOURNAL).open("a+b") as file:
                _cut_torn_line(file)
                _sync_folder(folder)
                yield Journal(file), read_journal(folder)


def read_journal(folder: Path) -> list[JournalEntry]:
    """Read a rollout's journal, without a torn last line; [] without a journal.

    Raises ConfigurationError for any other malformed line.
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
    return [
        _entry(line, file, number) for number, line in enumerate(_complete_lines(content), start=1)
    ]


def replay(entries: Sequence[JournalEntry]) -> RolloutState | None:
    """Return the state after these entries; None without any."""
    state: RolloutState | None = None
    for entry in entries:
        state = apply_entry(state, entry)
    return state


def apply_entry(state: RolloutState | None, entry: JournalEntry) -> RolloutState | None:
    """Return the state after one more entry.

    Entries that do not fit the state are ignored: a rollback is final.
    """
    if entry.event is JournalEvent.STARTED:
        return RolloutState(RolloutPhase.STARTING, entry.details)
    if state is None or (state.is_over and entry.event not in _EVENTS_AFTER_OUTCOME):
        return state
    return _replaced_state(state, entry)


def settings_of(details: Mapping[str, Any]) -> Rollout:
    """Return the settings at the start of a rollout, from its start details.

    Raises ConfigurationError if the journal does not hold them.
    """
    try:
        return Rollout.model_validate(details["settings"])
    except (KeyError, ValidationError) as error:
        problem = reason(error) if isinstance(error, ValidationError) else "it has none"
        raise ConfigurationError(
            f"the journal does not hold this rollout's settings: {problem}",
            remedy="start a rollout: tritonctl rollout start RELEASE",
        ) from error


def last_rollout_number(rollouts: Path) -> int | None:
    """Return the number of the last rollout with a journal; None without any."""
    numbers = [int(file.parent.name) for file in rollouts.glob(f"*/{JOURNAL}") if _has_number(file)]
    return max(numbers, default=None)


def _has_number(file: Path) -> bool:
    return file.parent.name.isascii() and file.parent.name.isdigit()


def _replaced_state(state: RolloutState, entry: JournalEntry) -> RolloutState:
    return replace(state, **_changes(state, entry))


def _changes(state: RolloutState, entry: JournalEntry) -> dict[str, Any]:
    reason = str(entry.details.get("reason", ""))
    changes: dict[str, Any] = {}
    match entry.event:
        case JournalEvent.LOADED:
            changes = {"loaded": True, "details": {**state.details, **entry.details}}
        case JournalEvent.STEP:
            step = int(entry.details["step"])
            changes = {
                "phase": RolloutPhase.STEPPING,
                "step": step,
                "since": entry.at,
                "reason": "",
            }
            changes |= {"moved": False, "confirmed": False}
        case JournalEvent.DECISION:
            changes = {"last_decision": entry.details}
        case JournalEvent.PAUSED:
            changes = {"phase": RolloutPhase.HOLDING, "reason": reason}
        case JournalEvent.RESUMED:
            phase = RolloutPhase.STARTING if state.step is None else RolloutPhase.STEPPING
            changes = {"phase": phase, "reason": ""}
        case JournalEvent.ROLLED_BACK | JournalEvent.PROMOTED if (
            state.phase is not RolloutPhase.ROLLED_BACK
        ):
            changes = {
                "phase": RolloutPhase(entry.event.value),
                "since": entry.at,
                "reason": reason,
            }
            changes |= {
                "outcome": entry.details,
                "moved": False,
                "confirmed": False,
                "closed": False,
            }
            changes["promoted"] = state.promoted or entry.event is JournalEvent.PROMOTED
        case JournalEvent.MOVED:
            changes = {"moved": True, "confirmed": bool(entry.details.get("confirmed"))}
        case JournalEvent.CLOSED:
            changes = {"closed": True}
    return changes


def _complete_lines(content: bytes) -> list[bytes]:
    """The lines that end in a newline."""
    return content.split(b"\n")[:-1]


def _entry(line: bytes, file: Path, number: int) -> JournalEntry:
    try:
        record = json.loads(line)
        at, event = float(record.pop("at")), JournalEvent(record.pop("event"))
        if event is JournalEvent.STEP:
            int(record["step"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{file}:{number} is not a journal line: {line[:60]!r}",
            remedy="the disk may have lost it: roll back by hand with tritonctl rollout abort, "
            "and start again",
            details=str(error),
        ) from error
    return JournalEntry(at, event, record)


def _cut_torn_line(file: IO[bytes]) -> None:
    """Remove the rest of a write that a crash interrupted; its action never started."""
    file.seek(0)
    content = file.read()
    complete_bytes = content.rfind(b"\n") + 1
    if complete_bytes != len(content):
        file.truncate(complete_bytes)
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable; other systems do so by themselves."""
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

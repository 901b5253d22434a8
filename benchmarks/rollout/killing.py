# SPDX-License-Identifier: Apache-2.0
"""Kills controller, Envoy and each server, in every state of a rollout, under load."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from load import Load
from rig import ENDED, Rig
from tritonctl.rollout.journal import RolloutPhase, RolloutState
from tritonctl.runtimes.server_state import EmbeddedServer
from tritonctl.runtimes.slot_servers import Slot, gateway_process, server_in_slot, stable_slot

_AFTER = 3.0
_LONGEST, _ENDS, _BACK = 120.0, 45.0, 90.0
_HELD_ENDS = 12.0  # a candidate that dies ends a rollout that is held, too
_GRACE = 1.0  # for requests that are on their way while users are moved
DONE = "kills.jsonl"  # rows that are done, a line each
_STOPPED, _RUNNING = 0.15, 0.05  # of a server that is disturbed
# So that a state lasts until it is killed in, and a rollout that goes on ends soon.
STEPS = {
    "steps": [25, 100],
    "minimum_requests": 10,
    "warm_up_seconds": 2.0,
    "keep_warm_seconds": 30.0,
    "shadow": 0.0,
    # Times are not the subject: a server that was killed loads again beside the other one.
    "tolerated": {"slowness": 0.49, "memory_growth": 10.0},
}
STATES: dict[str, Callable[[RolloutState], bool]] = {
    "first step": lambda state: state.phase is RolloutPhase.STEPPING and state.step == 0,
    "all users": lambda state: state.phase is RolloutPhase.STEPPING and state.step == 1,
    "held by hand": lambda state: state.phase is RolloutPhase.HOLDING,
    "promoted, warm": lambda state: state.phase is RolloutPhase.PROMOTED and state.moved,
    "rolled back, warm": lambda state: state.phase is RolloutPhase.ROLLED_BACK and state.moved,
}
_ASKED = {
    "held by hand": ("pause",),
    "promoted, warm": ("promote",),
    "rolled back, warm": ("abort",),
}
# Seconds of a step: what is asked for by hand comes before its end.
_HOLD, _HOLD_FOR_ASKING = 5.0, 60.0
_ALONE = "controller and its parent"
_ENVOY = "Envoy"
_SERVERS = ("stable's Triton", "the other Triton")
# Each crash within ten minutes is followed by a longer pause: the next row would measure that.
_STARTED_AGAIN = (_ENVOY, *_SERVERS)


def table(rig: Rig, folder: Path, is_over: Callable[[], bool]) -> Iterator[str]:
    """A row for each victim and state, until there is no time left.

    A row that an earlier run in `folder` has done is shown, and not done again.
    """
    rig.settings(STEPS)
    done = Rows(folder / DONE)
    yield (
        "| killed | state | requests | failed | went on | tokens lost | longest answer, s "
        "| from the other release once that was over | how it ended |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|---|"
    _clear(rig)
    for victim, kill in VICTIMS.items():
        for state in STATES:
            if (row := done.row(victim, state)) is not None:
                yield row
                continue
            if is_over():
                continue
            try:
                row = _row(rig, _new(folder), state, victim, kill)
                done.add(victim, state, row)
                yield row
                if victim in _STARTED_AGAIN:
                    rig.down()
                    rig.up()
                else:
                    _clear(rig)
            except Exception as error:  # the others are worth having
                yield f"| {victim} | {state} | not measured: {type(error).__name__}: {error} |"
                rig.down()
                rig.up()


class Rows:
    """Those that are done, in a file: victim, state, and the table's line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._rows = {(victim, state): row for victim, state, row in map(json.loads, lines)}

    def row(self, victim: str, state: str) -> str | None:
        """None: it is still to be done."""
        return self._rows.get((victim, state))

    def add(self, victim: str, state: str, row: str) -> None:
        """On the disk when this returns."""
        self._rows[victim, state] = row
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([victim, state, row]) + "\n")


def _new(folder: Path) -> Path:
    """A folder for a load's records that no earlier run has used."""
    return folder / f"kill-{len([*folder.glob('kill-*')])}"


def _clear(rig: Rig) -> None:
    """No rollout is under way, and what was killed serves again. Raises RuntimeError."""
    state = rig.state()
    if state is not None and not state.is_over:
        rig.command("rollout", "abort", "--at-once")
    end = time.monotonic() + _BACK
    while rig.command("status", check=False).code:
        if time.monotonic() > end:
            raise RuntimeError("stable does not serve again")
        time.sleep(1.0)


def _told(state: RolloutState | None) -> str:
    """How a rollout stands, or ended."""
    if state is None:
        return "no rollout"
    return f"{state.phase.value}: {state.outcome.get('reason', '') or state.reason}".rstrip(": ")


def _row(rig: Rig, folder: Path, state: str, victim: str, kill: Callable[[Rig], object]) -> str:
    candidate, number = rig.equal, rig.served
    rig.settings({"hold_seconds": _HOLD_FOR_ASKING if state in _ASKED else _HOLD})
    load = Load(rig.url, folder)
    if (done := rig.start(candidate)).code:
        load.stop()
        raise RuntimeError(done.words[-500:])
    rig.wait(STATES["first step"], _LONGEST)
    if state in _ASKED:
        rig.command("rollout", *_ASKED[state])
    if not rig.wait(STATES[state], _LONGEST):
        load.stop()
        raise RuntimeError(f"never {state}: {_told(rig.state())}")
    time.sleep(1.0)
    kill(rig)
    if victim != _ALONE:
        longest = _HELD_ENDS if state == "held by hand" else _ENDS
        if victim in _SERVERS or state != "held by hand":
            rig.wait(lambda state: state.is_over and state.moved, longest)
    time.sleep(_AFTER)
    asked, after = load.stop(), rig.state()
    if after is None:
        raise RuntimeError("the journal is gone")
    kept = candidate if after.phase is RolloutPhase.PROMOTED else None
    wanted = str(kept.number) if kept else number
    ends = [entry.at for entry in rig.entries() if entry.event in ENDED]
    over = ends[-1] if ends else None
    wrong = [e for e in asked if over and e.sent > over + _GRACE and e.version not in ("", wanted)]
    longest = max((each.end - each.sent for each in asked if not each.failed), default=0.0)
    cells = (
        victim,
        state,
        str(len(asked)),
        str(sum(each.failed for each in asked)),
        str(sum(each.resumes > 0 and not each.failed for each in asked)),
        str(sum(each.lost for each in asked)),
        f"{longest:.1f}",
        str(len(wrong)) if over else "–",
        _told(after),
    )
    return "| " + " | ".join(cells) + " |"


def _controller(rig: Rig) -> None:
    holder = json.loads((rig.rollouts / "controller.json").read_text(encoding="utf-8"))
    with suppress(ProcessLookupError):
        os.kill(int(holder["pid"]), signal.SIGKILL)


def _controller_and_parent(rig: Rig) -> None:
    """Nobody starts it again: users stay where they are until somebody comes."""
    holder = json.loads((rig.rollouts / "controller.json").read_text(encoding="utf-8"))
    pid = int(holder["pid"])
    status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    parent = int(status.rpartition(")")[2].split()[1])
    for each in (parent, pid):
        if each > 1:
            os.kill(each, signal.SIGKILL)


def _envoy(rig: Rig) -> None:
    if gateway_process(rig.project) is not None:
        _kill("/envoy", str(rig.project.root), group=False)


def _triton(rig: Rig, slot: Slot) -> None:
    state = server_in_slot(rig.project, slot)
    if not isinstance(state, EmbeddedServer):
        raise RuntimeError(f"no server in slot {slot}")
    _kill("/tritonserver", state.shm_prefix, group=True)


def disturb(rig: Rig, seconds: float) -> None:
    """The candidate's server runs a quarter of the time, as beside others on a busy machine."""
    slot = stable_slot(rig.project).opposite
    state = server_in_slot(rig.project, slot)
    if not isinstance(state, EmbeddedServer):
        raise RuntimeError(f"no server in slot {slot}")
    processes = _processes("/tritonserver", state.shm_prefix)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            for number, lasts in ((signal.SIGSTOP, _STOPPED), (signal.SIGCONT, _RUNNING)):
                for pid in processes:
                    with suppress(ProcessLookupError):  # it was taken back, and ended
                        os.killpg(pid, number)
                time.sleep(lasts)
    finally:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGCONT)


def _kill(program: str, argument: str, *, group: bool) -> None:
    """SIGKILL to the program with this among its arguments; group: and to what it has started."""
    for pid in _processes(program, argument):
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL) if group else os.kill(pid, signal.SIGKILL)


def _processes(program: str, argument: str) -> list[int]:
    """Of the program with this among its arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = entry.read_bytes().decode("utf-8", "replace").split("\0")
            if words[0].endswith(program) and argument in " ".join(words):
                found.append(int(entry.parent.name))
    return found


VICTIMS: dict[str, Callable[[Rig], object]] = {
    "controller": _controller,
    _ALONE: _controller_and_parent,
    _ENVOY: _envoy,
    _SERVERS[0]: lambda rig: _triton(rig, stable_slot(rig.project)),
    _SERVERS[1]: lambda rig: _triton(rig, stable_slot(rig.project).opposite),
}

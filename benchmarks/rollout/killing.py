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
from rig import Rig
from tritonctl.rollout.journal import Phase, State
from tritonctl.server.groups import Slot, gateway, group, stable_slot
from tritonctl.server.state import EmbeddedServer

_BEFORE, _AFTER = 4.0, 15.0
_LONGEST = 120.0
# So that a state lasts until it is killed in: the default judge, long holds.
STEPS = {"steps": [25, 100], "hold_seconds": 20.0, "minimum_requests": 10, "shadow": 0.0}
STATES: dict[str, Callable[[State], bool]] = {
    "first step": lambda state: state.phase is Phase.STEPPING and state.step == 0,
    "all users": lambda state: state.phase is Phase.STEPPING and state.step == 1,
    "held by hand": lambda state: state.phase is Phase.HOLDING,
    "promoted, warm": lambda state: state.phase is Phase.PROMOTED and state.moved,
    "rolled back, warm": lambda state: state.phase is Phase.ROLLED_BACK and state.moved,
}


def table(rig: Rig, folder: Path) -> Iterator[str]:
    """A row for each state and victim."""
    rig.settings({**STEPS, "keep_warm_seconds": 60.0})
    yield (
        "| killed | state | requests | failed | went on | tokens lost | longest pause, s "
        "| how it ended |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|---|"
    victims = {
        "controller": _controller,
        "Envoy": _envoy,
        "stable's Triton": lambda rig: _triton(rig, stable_slot(rig.project)),
        "candidate's Triton": lambda rig: _triton(rig, stable_slot(rig.project).other),
    }
    for number, (state, reached) in enumerate(STATES.items()):
        for victim, kill in victims.items():
            name = f"kill-{number}-{victim.partition(' ')[0]}"
            try:
                yield _row(rig, folder / name.replace("'", ""), state, reached, victim, kill)
            except Exception as error:  # the others are worth having
                yield f"| {victim} | {state} | not measured: {type(error).__name__}: {error} |"
            rig.settle()
            rig.down()
            rig.up()


def _row(
    rig: Rig,
    folder: Path,
    state: str,
    reached: Callable[[State], bool],
    victim: str,
    kill: Callable[[Rig], object],
) -> str:
    serves = group(rig.project, stable_slot(rig.project))
    stable_number = (serves.release or "").partition("-")[0] if serves else ""
    candidate = rig.twin if int(stable_number) == rig.stable.number else rig.stable
    load = Load(rig.url, folder)
    time.sleep(_BEFORE)
    if (done := rig.start(candidate)).code:
        raise RuntimeError(done.words[-500:])
    if state == "held by hand":
        rig.wait(STATES["first step"], _LONGEST)
        rig.command("rollout", "pause")
    elif state == "promoted, warm":
        rig.wait(STATES["first step"], _LONGEST)
        rig.command("rollout", "promote")
    elif state == "rolled back, warm":
        rig.wait(STATES["first step"], _LONGEST)
        rig.command("rollout", "abort")
    if not rig.wait(reached, _LONGEST):
        load.stop()
        raise RuntimeError(f"never {state}: {rig.state()}")
    time.sleep(2.0)
    kill(rig)
    time.sleep(_AFTER)
    asked = load.stop()
    rig.wait(lambda state: state.ended and state.moved, 60.0)
    after = rig.state()
    longest = max((each.end - each.sent for each in asked if not each.failed), default=0.0)
    ended = f"{after.phase.value}: {after.end.get('reason', '')}" if after else "no journal"
    cells = (
        victim,
        state,
        str(len(asked)),
        str(sum(each.failed for each in asked)),
        str(sum(each.resumes > 0 and not each.failed for each in asked)),
        str(sum(each.lost for each in asked)),
        f"{longest:.1f}",
        ended,
    )
    return "| " + " | ".join(cells) + " |"


def _controller(rig: Rig) -> None:
    holder = json.loads((rig.rollouts / "controller.json").read_text(encoding="utf-8"))
    with suppress(ProcessLookupError):
        os.kill(int(holder["pid"]), signal.SIGKILL)


def _envoy(rig: Rig) -> None:
    if gateway(rig.project) is not None:
        _kill("/envoy", str(rig.project.root), group=False)


def _triton(rig: Rig, slot: Slot) -> None:
    state = group(rig.project, slot)
    if not isinstance(state, EmbeddedServer):
        raise RuntimeError(f"no server in slot {slot}")
    _kill("/tritonserver", state.shm_prefix, group=True)


def _kill(program: str, argument: str, *, group: bool) -> None:
    """SIGKILL to the program with this among its arguments; group: and to what it has started."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = entry.read_bytes().decode("utf-8", "replace").split("\0")
            if words[0].endswith(program) and argument in " ".join(words):
                pid = int(entry.parent.name)
                os.killpg(pid, signal.SIGKILL) if group else os.kill(pid, signal.SIGKILL)

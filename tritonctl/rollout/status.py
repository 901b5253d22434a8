# SPDX-License-Identifier: Apache-2.0
"""The status of a rollout from its files alone, for `status` and `watch`; queries no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.errors import UsageError
from tritonctl.project.schema import Project
from tritonctl.releases.store import find_release, stored_releases
from tritonctl.rollout.journal import (
    JournalEntry,
    JournalEvent,
    RolloutPhase,
    RolloutState,
    controller_of,
    last_rollout_number,
    read_journal,
    replay,
)
from tritonctl.rollout.operator_commands import OperatorCommand, pending_commands

_RECENT = 6


def rollouts_folder(project: Project) -> Path:
    """Return the folder of a project's rollouts."""
    return project.state / "rollouts"


@dataclass(frozen=True)
class RolloutStatus:
    """A rollout of a project."""

    number: int
    folder: Path
    entries: Sequence[JournalEntry]
    state: RolloutState
    controller: str | None  # process id of the running controller
    unfinished_commands: Sequence[OperatorCommand]

    @property
    def steps(self) -> Sequence[float]:
        """The candidate's share of the users per step, in per cent."""
        settings = self.state.details.get("settings", {})
        return [float(each) for each in settings.get("steps", ())]

    @property
    def share(self) -> float:
        """The candidate's current or next share of the users, in per cent."""
        if self.state.phase is RolloutPhase.PROMOTED:
            return 100.0
        if self.state.is_over or self.state.step is None:
            return 0.0
        return self.steps[self.state.step]

    @property
    def figures(self) -> Mapping[str, Any]:
        """The judge's latest figures."""
        figures = self.state.outcome.get("figures") or self.state.last_decision.get("figures") or {}
        return figures if isinstance(figures, Mapping) else {}

    @property
    def recent_events(self) -> Sequence[JournalEntry]:
        """The latest events, without decisions."""
        return [entry for entry in self.entries if entry.event is not JournalEvent.DECISION][
            -_RECENT:
        ]

    @property
    def needs_controller(self) -> bool:
        """Whether the rollout is unfinished and no controller runs."""
        return self.controller is None and not self.state.closed

    @property
    def reason(self) -> str:
        """The reason of the outcome, or of the latest decision."""
        return self.state.reason or str(self.state.last_decision.get("reason", ""))

    def record(self) -> dict[str, Any]:
        """Return the record for `--json`."""
        state = self.state
        return {
            "rollout": self.number,
            "release": state.details.get("release"),
            "stable": state.details.get("stable"),
            "phase": state.phase.value,
            "step": state.step,
            "steps_percent": list(self.steps),
            "share_percent": self.share,
            "since_unix_seconds": state.since,
            "status": state.last_decision.get("standing"),
            "reason": self.reason,
            "figures": dict(self.figures),
            "moved": state.moved,
            "closed": state.closed,
            "controller": self.controller,
            "pending_commands": [ask.value for ask in self.unfinished_commands],
        }


def rollout_status(project: Project, number: int | None = None) -> RolloutStatus:
    """Return the status of a rollout, by default the last one. Raises UsageError without one."""
    folder = rollouts_folder(project)
    last = last_rollout_number(folder)
    chosen = last if number is None else number
    rollout_folder = folder / str(chosen)
    # Read before the journal: a controller writes there before it removes a command or exits.
    controller = controller_of(folder) if chosen == last else None
    pending = pending_commands(rollout_folder)
    entries = read_journal(rollout_folder)
    state = replay(entries)
    if chosen is None or state is None:
        history = f"the last one is {last}" if last is not None else "the project has had none"
        raise UsageError(
            f"no rollout: {history}" if number is None else f"no rollout {number}: {history}",
            remedy="start one: tritonctl rollout start RELEASE",
        )
    return RolloutStatus(chosen, rollout_folder, entries, state, controller, pending)


def refuse_stable_change(project: Project, address: str | None) -> None:
    """Raise UsageError if serving this release (None: an older one) would change stable.

    Only a rollout with a running controller is affected: its judge compares against stable.
    """
    last = last_rollout_number(rollouts_folder(project))
    if last is None:
        return
    status = rollout_status(project, last)
    if status.state.is_over or status.controller is None:
        return
    stable = str(status.state.details.get("stable"))
    if address is not None and find_release(stored_releases(project), address).name == stable:
        return
    raise UsageError(
        f"rollout {last} of release {status.state.details.get('release')} is under way "
        f"and compared with {stable}",
        remedy="wait for its end: `tritonctl rollout watch`; or take its users back: `tritonctl "
        "rollout abort`",
    )

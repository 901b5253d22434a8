# SPDX-License-Identifier: Apache-2.0
"""Where a rollout stands, by its files alone: what `status` and `watch` show. Asks no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.errors import UsageError
from tritonctl.project.schema import Project
from tritonctl.releases.store import find_release, stored_releases
from tritonctl.rollout.asks import Ask, waiting
from tritonctl.rollout.journal import (
    Entry,
    Event,
    Phase,
    State,
    controller_of,
    latest,
    read,
    replay,
)

_RECENT = 6


def rollouts_folder(project: Project) -> Path:
    """Where a project's rollouts are."""
    return project.state / "rollouts"


@dataclass(frozen=True)
class Rollout:
    """One of a project. `controller`: its process, None without one. `asked`: not answered yet."""

    number: int
    folder: Path
    entries: Sequence[Entry]
    state: State
    controller: str | None
    asked: Sequence[Ask]

    @property
    def steps(self) -> Sequence[float]:
        """Per cent of the users, step by step."""
        settings = self.state.about.get("settings", {})
        return [float(each) for each in settings.get("steps", ())]

    @property
    def share(self) -> float:
        """Per cent of the users that the candidate has, or is about to."""
        if self.state.phase is Phase.PROMOTED:
            return 100.0
        if self.state.ended or self.state.step is None:
            return 0.0
        return self.steps[self.state.step]

    @property
    def figures(self) -> Mapping[str, Any]:
        """Of the judge, the last ones."""
        figures = self.state.end.get("figures") or self.state.last.get("figures") or {}
        return figures if isinstance(figures, Mapping) else {}

    @property
    def events(self) -> Sequence[Entry]:
        """The last ones, decisions left out."""
        return [one for one in self.entries if one.event is not Event.DECISION][-_RECENT:]

    @property
    def left_alone(self) -> bool:
        """Whether something is to be done and nobody does it."""
        return self.controller is None and not self.state.closed

    @property
    def said(self) -> str:
        """In words, what happens or what has ended it."""
        return self.state.reason or str(self.state.last.get("reason", ""))

    def record(self) -> dict[str, Any]:
        """For `--json`."""
        state = self.state
        return {
            "rollout": self.number,
            "release": state.about.get("release"),
            "stable": state.about.get("stable"),
            "phase": state.phase.value,
            "step": state.step,
            "steps": list(self.steps),
            "share": self.share,
            "since": state.since,
            "standing": state.last.get("standing"),
            "reason": self.said,
            "figures": dict(self.figures),
            "moved": state.moved,
            "closed": state.closed,
            "controller": self.controller,
            "asked": [ask.value for ask in self.asked],
        }


def rollout(project: Project, number: int | None = None) -> Rollout:
    """The rollout of this number, the last one by default. Raises UsageError without one."""
    folder = rollouts_folder(project)
    last = latest(folder)
    chosen = last if number is None else number
    place = folder / str(chosen)
    # Before the journal: whoever answers, or ends, writes there first.
    controller = controller_of(folder) if chosen == last else None
    asked = waiting(place)
    entries = read(place)
    state = replay(entries)
    if chosen is None or state is None:
        known = f"the last one is {last}" if last is not None else "the project has had none"
        raise UsageError(
            f"no rollout: {known}" if number is None else f"no rollout {number}: {known}",
            remedy="start one: tritonctl rollout start RELEASE",
        )
    return Rollout(chosen, place, entries, state, controller, asked)


def refuse_another_stable(project: Project, address: str | None) -> None:
    """Raise UsageError where serving this release, or None: an older one, would change stable.

    A candidate is judged beside it; where nobody controls the rollout any more, nobody judges.
    """
    last = latest(rollouts_folder(project))
    if last is None:
        return
    found = rollout(project, last)
    if found.state.ended or found.controller is None:
        return
    stable = str(found.state.about.get("stable"))
    if address is not None and find_release(stored_releases(project), address).name == stable:
        return
    raise UsageError(
        f"rollout {last} of release {found.state.about.get('release')} is under way, judged beside "
        f"{stable}",
        remedy="wait for its end: `tritonctl rollout watch`; or take its users back: `tritonctl "
        "rollout abort`",
    )

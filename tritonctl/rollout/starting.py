# SPDX-License-Identifier: Apache-2.0
"""Begins a rollout: what is wrong is told before anything is loaded, or a user is moved."""

from __future__ import annotations

import time
from typing import Any

from tritonctl.errors import ServerError, TritonctlError, UsageError
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.store import Stored, find_release, stored_releases
from tritonctl.rollout import asks
from tritonctl.rollout.asks import Ask
from tritonctl.rollout.journal import Entry, Event, Journal, controlling, latest
from tritonctl.rollout.judge import RESPONSE
from tritonctl.rollout.one_host import Host
from tritonctl.rollout.places import Place
from tritonctl.rollout.standing import Rollout, rollout, rollouts_folder
from tritonctl.rollout.steering import LOG, Source, launch
from tritonctl.server.gateway.shares import require_users
from tritonctl.server.slots import Slot

_FIRST_WORD_SECONDS = 60.0
_POLL_SECONDS = 0.2


def start(
    project: Project,
    source: Source,
    address: str,
    progress: Progress,
    *,
    breaking: bool,
    place: Place | None = None,
) -> Rollout:
    """Load the release beside stable, and leave it to a controller; returns what that says first.

    breaking: also where clients of stable may fail with it. place: None: this host. Raises as
    `groups.start_candidate`, UsageError while another rollout is under way, ConfigurationError
    without a header for users.
    """
    require_users(project.rollout)
    place = place or Host(project)
    stored = find_release(stored_releases(project), address)
    folder = rollouts_folder(project)
    _close_the_last(project, source, progress)
    number = (latest(folder) or 0) + 1
    with controlling(folder, number) as (journal, _):
        _load(project, place, stored, journal, progress, number=number, breaking=breaking)
    launch(project, source, folder / str(number))
    with progress.step("Waiting for the controller"):
        return _first_word(project, number)


def _load(
    project: Project,
    place: Place,
    stored: Stored,
    journal: Journal,
    progress: Progress,
    *,
    number: int,
    breaking: bool,
) -> None:
    try:
        place.prepare(number)
        slot = place.free_slot()
        about = {
            "release": stored.name,
            "stable": place.served(),
            "slot": slot.value,
            "settings": project.rollout.model_dump(mode="json"),
            "breaking": breaking,
            **place.about(),
        }
    except BaseException:
        journal.remove()
        raise
    journal.add(Entry(time.time(), Event.STARTED, about))
    try:
        place.load(stored, progress, breaking=breaking)
        counted = _counted(place, slot)
    except ServerError as error:
        _give_up(journal, f"it was not loaded: {error.problem}")
        raise
    except TritonctlError:  # refused before anything was loaded: no rollout at all
        journal.remove()
        raise
    except BaseException:
        place.unload(slot)
        _give_up(journal, "interrupted while it was loaded")
        raise
    journal.add(Entry(time.time(), Event.LOADED, counted))


def _counted(place: Place, slot: Slot) -> dict[str, Any]:
    """What is there to judge: times of stable, whose servers have had requests; memory of both."""
    try:
        both = [place.counts(each) for each in (slot.other, slot)]
    except ServerError:
        place.unload(slot)
        raise
    times = sorted(both[0].times) if both[0] is not None else []
    memory = all(each is not None and each.memory_bytes is not None for each in both)
    return {"times": times or [RESPONSE], "memory": memory}


def _give_up(journal: Journal, reason: str) -> None:
    at = time.time()
    journal.add(Entry(at, Event.ROLLED_BACK, {"reason": reason, "at_once": True}))
    journal.add(Entry(at, Event.MOVED, {"confirmed": True, "seconds": 0.0}))
    journal.add(Entry(at, Event.CLOSED, {}))


def _close_the_last(project: Project, source: Source, progress: Progress) -> None:
    """Make room for another one. Raises UsageError while users of the last one are on their way."""
    last = latest(rollouts_folder(project))
    if last is None:
        return
    found = rollout(project, last)
    if not found.state.ended:
        gone = " and its controller is gone" if found.left_alone else ""
        go_on = "go on with it: `tritonctl rollout resume`; " if gone else ""
        raise UsageError(
            f"rollout {last} of release {found.state.about.get('release')} is under way{gone}",
            remedy=f"{go_on}see where it stands: `tritonctl rollout watch`; or take its users "
            "back: `tritonctl rollout abort`",
        )
    if found.state.closed:
        return
    with progress.step("Unloading what the last rollout keeps warm"):
        asks.place(found.folder, Ask.CLOSE)
        if found.controller is None:
            launch(project, source, found.folder)
        deadline = time.monotonic() + project.server.exit_timeout_seconds + _FIRST_WORD_SECONDS
        while (found := rollout(project, last)).controller or not found.state.closed:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the controller of rollout {last} does not end",
                    remedy=f"read its log: {found.folder / LOG}",
                )
            time.sleep(_POLL_SECONDS)


def _first_word(project: Project, number: int) -> Rollout:
    deadline = time.monotonic() + _FIRST_WORD_SECONDS
    while True:
        found = rollout(project, number)
        if found.state.last or found.state.step is not None or found.state.ended:
            return found
        if time.monotonic() > deadline:
            raise ServerError(
                f"the controller of rollout {number} says nothing",
                remedy=f"read its log: {found.folder / LOG}; unload the candidate: `tritonctl "
                "rollout abort`",
            )
        time.sleep(_POLL_SECONDS)

# SPDX-License-Identifier: Apache-2.0
"""Start a rollout; errors are raised before anything is loaded or any user moves."""

from __future__ import annotations

import time
from typing import Any

from tritonctl.errors import ServerError, TritonctlError, UsageError
from tritonctl.gateway.shares import require_user_header
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.releases.slots import Slot
from tritonctl.releases.store import StoredRelease, find_release, stored_releases
from tritonctl.rollout import operator_commands as asks
from tritonctl.rollout.host_environment import HostPlatform
from tritonctl.rollout.journal import (
    Journal,
    JournalEntry,
    JournalEvent,
    last_rollout_number,
    open_journal,
)
from tritonctl.rollout.judge import RESPONSE
from tritonctl.rollout.operator_commands import OperatorCommand
from tritonctl.rollout.platforms import RolloutPlatform
from tritonctl.rollout.status import RolloutStatus, rollout_status, rollouts_folder
from tritonctl.rollout.steering import LOG, ProjectSource, launch_controller

_FIRST_DECISION_SECONDS = 60.0
_POLL_SECONDS = 0.2


def start(
    project: Project,
    source: ProjectSource,
    address: str,
    progress: Progress,
    *,
    breaking: bool,
    platform: RolloutPlatform | None = None,
) -> RolloutStatus:
    """Load the release next to stable and start a controller; return its first status.

    breaking: allow releases with which stable's clients may fail. platform: None: this host. Raises
    as `slot_servers.start_candidate`, UsageError during another rollout, ConfigurationError without
    a user header.
    """
    require_user_header(project.rollout)
    platform = platform or HostPlatform(project)
    stored = find_release(stored_releases(project), address)
    folder = rollouts_folder(project)
    _close_previous_rollout(project, source, progress)
    number = (last_rollout_number(folder) or 0) + 1
    with open_journal(folder, number) as (journal, _):
        _load(project, platform, stored, journal, progress, number=number, breaking=breaking)
    launch_controller(project, source, folder / str(number))
    with progress.step("Waiting for the controller"):
        return _await_first_decision(project, number)


def _load(
    project: Project,
    platform: RolloutPlatform,
    stored: StoredRelease,
    journal: Journal,
    progress: Progress,
    *,
    number: int,
    breaking: bool,
) -> None:
    try:
        platform.prepare(number)
        slot = platform.free_slot()
        details = {
            "release": stored.name,
            "stable": platform.live_release(),
            "slot": slot.value,
            "settings": project.rollout.model_dump(mode="json"),
            "breaking": breaking,
            **platform.journal_details(),
        }
    except BaseException:
        journal.remove()
        raise
    journal.add(JournalEntry(time.time(), JournalEvent.STARTED, details))
    try:
        platform.load(stored, progress, breaking=breaking)
        counted = _available_metrics(platform, slot)
    except ServerError as error:
        _give_up(journal, f"the candidate did not load: {error.problem}")
        raise
    except TritonctlError:  # refused before loading: there is no rollout
        journal.remove()
        raise
    except BaseException:
        platform.unload(slot)
        _give_up(journal, "loading the candidate was interrupted")
        raise
    journal.add(JournalEntry(time.time(), JournalEvent.LOADED, counted))


def _available_metrics(platform: RolloutPlatform, slot: Slot) -> dict[str, Any]:
    """The metrics that can be judged: stable's times (it has had requests), memory of both."""
    try:
        counters = [platform.counters(each) for each in (slot.opposite, slot)]
    except ServerError:
        platform.unload(slot)
        raise
    times = sorted(counters[0].times) if counters[0] is not None else []
    memory = all(each is not None and each.memory_bytes is not None for each in counters)
    return {"times": times or [RESPONSE], "memory": memory}


def _give_up(journal: Journal, reason: str) -> None:
    at = time.time()
    journal.add(JournalEntry(at, JournalEvent.ROLLED_BACK, {"reason": reason, "at_once": True}))
    journal.add(JournalEntry(at, JournalEvent.MOVED, {"confirmed": True, "seconds": 0.0}))
    journal.add(JournalEntry(at, JournalEvent.CLOSED, {}))


def _close_previous_rollout(project: Project, source: ProjectSource, progress: Progress) -> None:
    """Unload the warm version of the last rollout. Raises UsageError if that is still running."""
    last = last_rollout_number(rollouts_folder(project))
    if last is None:
        return
    previous = rollout_status(project, last)
    if not previous.state.is_over:
        controller_note = " and its controller is gone" if previous.needs_controller else ""
        resume_hint = "go on with it: `tritonctl rollout resume`; " if controller_note else ""
        raise UsageError(
            f"rollout {last} of release {previous.state.details.get('release')} "
            f"is under way{controller_note}",
            remedy=f"{resume_hint}watch it: `tritonctl rollout watch`; or take its users back: "
            "`tritonctl rollout abort`",
        )
    if previous.state.closed:
        return
    with progress.step("Unloading the warm version of the last rollout"):
        asks.submit_command(previous.folder, OperatorCommand.CLOSE)
        if previous.controller is None:
            launch_controller(project, source, previous.folder)
        deadline = time.monotonic() + project.server.exit_timeout_seconds + _FIRST_DECISION_SECONDS
        while (previous := rollout_status(project, last)).controller or not previous.state.closed:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the controller of rollout {last} does not stop",
                    remedy=f"read its log: {previous.folder / LOG}",
                )
            time.sleep(_POLL_SECONDS)


def _await_first_decision(project: Project, number: int) -> RolloutStatus:
    deadline = time.monotonic() + _FIRST_DECISION_SECONDS
    while True:
        status = rollout_status(project, number)
        if status.state.last_decision or status.state.step is not None or status.state.is_over:
            return status
        if time.monotonic() > deadline:
            raise ServerError(
                f"the controller of rollout {number} does not respond",
                remedy=f"read its log: {status.folder / LOG}; unload the candidate: `tritonctl "
                "rollout abort`",
            )
        time.sleep(_POLL_SECONDS)

# SPDX-License-Identifier: Apache-2.0
"""Promote or roll back a loaded candidate: the loop of each second, and recovery after a crash.

The caller passes clock, metrics, routes and servers. Each action is journaled before it is taken
and may be repeated: a restarted controller reads the journal, checks the routes and continues. If
the journal cannot be written, the controller rolls back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, HostError, ServerError, TritonctlError
from tritonctl.rollout import evidence
from tritonctl.rollout.environment import (
    GatewayRequests,
    Observation,
    RolloutEnvironment,
    Scraper,
)
from tritonctl.rollout.journal import (
    Journal,
    JournalEntry,
    JournalEvent,
    RolloutPhase,
    RolloutState,
    apply_entry,
    replay,
    settings_of,
)
from tritonctl.rollout.judge import TIMES, Decision, DecisionStatus, Judge
from tritonctl.rollout.operator_commands import OperatorCommand, pending_commands, remove_command

# Timeouts until the gateway has read new routes: for a rollback, for a step.
_CONFIRM_SECONDS, _STEP_SECONDS = 5.0, 2.0
_REPEAT_SECONDS = 10.0  # between two rollbacks that the gateway has not confirmed
# Journal every changed decision; repeat an unchanged one after a hundredth of the step's duration.
# A week needs at most a thousand lines.
_DECISIONS_PER_STEP = 100


class Controller:
    """The controller of the rollout in `folder`; `open_journal` yields journal and entries.

    Raises ConfigurationError for a journal that does not start a rollout.
    """

    def __init__(
        self,
        journal: Journal,
        entries: Sequence[JournalEntry],
        folder: Path,
        environment: RolloutEnvironment,
    ) -> None:
        self._journal, self._folder, self._environment = journal, folder, environment
        state = replay(entries)
        try:
            if state is None:
                raise ValueError("nothing was started")
            self._settings = settings_of(state.details)
            self._candidate_slot = {"a": "a", "b": "b"}[state.details["slot"]]
        except (KeyError, ValueError) as error:
            raise ConfigurationError(
                f"{folder} has no rollout to continue: {error}",
                remedy="start one: tritonctl rollout start RELEASE",
            ) from error
        self.state: RolloutState = state
        self._stable_slot = "b" if self._candidate_slot == "a" else "a"
        self._last_journaled_at = 0.0  # time of the last decision in the journal
        self._last_journaled: tuple[DecisionStatus, str] | None = None  # its status and reason
        self._step_start_requests: GatewayRequests | None = None
        self._next_repeat = environment.clock() + _REPEAT_SECONDS
        self._judge = self._new_judge(environment.clock())
        self._scraper: Scraper  # set by recovery

    def run(self) -> None:
        """Run until the rollout is closed. Raises HostError once users are back on stable."""
        self._run_or_roll_back(self.recover)
        due = self._environment.clock()
        while self.tick():
            due = max(due + 1.0, self._environment.clock())
            self._environment.sleep(max(0.0, due - self._environment.clock()))

    def recover(self) -> None:
        """Continue an earlier controller: repeat its last action, keep users where they are."""
        if self.state.closed:
            return
        if self.state.is_over:
            if not self.state.moved:
                self._apply_outcome()
            return
        if not self.state.loaded:
            self._roll_back("loading the candidate was interrupted", at_once=True)
            return
        aborts = {OperatorCommand.ABORT, OperatorCommand.ABORT_AT_ONCE}
        if aborts & {*pending_commands(self._folder)}:
            return  # the loop executes it first
        if self.state.step is not None and not self._resume_step(self.state.step):
            return
        self._resume_judging()

    def tick(self) -> bool:
        """Observe once and act; return whether the rollout continues."""
        if not self.state.closed:
            self._run_or_roll_back(self._tick)
        return not self.state.closed

    def _run_or_roll_back(self, act: Callable[[], None]) -> None:
        """Roll back if the journal or the routes cannot be written."""
        try:
            act()
        except HostError as error:
            if self.state.is_over:
                raise
            self._roll_back(f"the controller cannot go on: {error.problem}", at_once=False)

    def _tick(self) -> None:
        for command in pending_commands(self._folder):
            self._execute(command)
            remove_command(self._folder, command)
        if self.state.is_over:
            self._unload_after_keep_warm()
            return
        at = self._environment.clock()
        observation = self._scraper.observe(at)
        decision = self._with_gateway_reason(self._judge.observe(observation.scrape), observation)
        self._save_evidence(at)
        self._journal_decision(decision)
        if decision.status is DecisionStatus.ROLLBACK:
            self._roll_back(decision.reason, at_once=True, figures=decision.figures)
        elif self.state.phase is RolloutPhase.STARTING:
            if decision.status is DecisionStatus.HEALTHY:
                self._start_step(0, observation)
        elif (
            self.state.phase is RolloutPhase.STEPPING
            and decision.status is DecisionStatus.PROMOTE_STEP
            and self._is_move_confirmed()
        ):
            self._next_step(observation, decision.reason)

    def _save_evidence(self, at: float) -> None:
        start = self._step_start_requests
        start_requests = None if start is None else [start.requests, start.with_user]
        about = {**self._scraper.saved_state(), "began": start_requests}
        evidence.save(self._folder, self._judge, at, about)

    def _with_gateway_reason(self, decision: Decision, observation: Observation) -> Decision:
        """Refine the judge's decision with the reason why no requests arrive."""
        if decision.status in (DecisionStatus.ROLLBACK, DecisionStatus.HOLD):
            return decision
        blocker = observation.problem or self._missing_traffic_reason(observation)
        if self.state.step is None:
            status = DecisionStatus.INCONCLUSIVE if blocker else DecisionStatus.HEALTHY
            reason = f"{blocker}: no user is moved" if blocker else "users are here: the first step"
            return replace(decision, status=status, reason=reason)
        if decision.status is DecisionStatus.INCONCLUSIVE and blocker:
            return replace(decision, reason=f"{decision.reason}: {blocker}")
        return decision

    def _missing_traffic_reason(self, observation: Observation) -> str:
        """Why the candidate can get no users; empty if it can."""
        if observation.gateway is None:
            return "no metrics from the gateway"
        if observation.scrape.stable is None or observation.scrape.candidate is None:
            return "metrics of a version are missing"
        start, latest = self._step_start_requests, observation.gateway
        if start is None or latest.requests < start.requests:
            start = self._step_start_requests = latest
        requests = latest.requests - start.requests
        with_user = latest.with_user - start.with_user
        if not requests:
            return "the gateway has had no request"
        if with_user <= 0:
            header = self._settings.user_header
            return f"the gateway has had {requests} requests, none with the header {header}"
        return ""

    def _resume_step(self, step: int) -> bool:
        """Restore the users' split of the journal; return whether the rollout continues."""
        steps = self._settings.steps
        try:
            share = self._environment.service.share()
        except HostError as error:
            self._roll_back(error.problem, at_once=False)
            return False
        if share == 0 and (self.state.moved or step > 0):  # by another process
            self._roll_back("another process took its users back", at_once=False)
            return False
        if not self.state.moved:
            self._move(max(share, steps[step]))
        return True

    def _resume_judging(self) -> None:
        """Restore the judge from its evidence file, or restart the step without one."""
        at = self._environment.clock()
        judge = self._new_judge(at)
        about = evidence.restore(self._folder, judge, at)
        step = self.state.step or 0
        if about is None or judge.step > step:
            judge, about = self._new_judge(at), {}
        if judge.step < step:
            judge.begin_step(step, at)
        self._judge, self._scraper = judge, self._environment.scraper(about)
        if start_requests := about.get("began"):
            self._step_start_requests = GatewayRequests(*map(int, start_requests))

    def _new_judge(self, at: float) -> Judge:
        about = self.state.details
        times, memory = about.get("times", TIMES), about.get("memory", True)
        return Judge(self._settings, at, times=times, memory=memory)

    def _execute(self, command: OperatorCommand) -> None:
        phase, by_hand = self.state.phase, {"reason": "by hand"}
        match command:
            case OperatorCommand.ABORT | OperatorCommand.ABORT_AT_ONCE if (
                phase is not RolloutPhase.ROLLED_BACK
            ):
                self._roll_back("by hand", at_once=command is OperatorCommand.ABORT_AT_ONCE)
            case OperatorCommand.PROMOTE if not self.state.is_over and self.state.loaded:
                self._finish(JournalEvent.PROMOTED, by_hand)
            case OperatorCommand.PAUSE if phase in (RolloutPhase.STARTING, RolloutPhase.STEPPING):
                self._add(JournalEvent.PAUSED, by_hand)
            case OperatorCommand.RESUME if phase is RolloutPhase.HOLDING:
                self._add(JournalEvent.RESUMED, by_hand)
            case OperatorCommand.CLOSE if self.state.is_over:
                self._close()

    def _start_step(self, step: int, observation: Observation) -> None:
        share = self._settings.steps[step]
        self._add(JournalEvent.STEP, {"step": step, "share": share})
        self._move(share)
        self._judge.begin_step(step, self._environment.clock())
        self._step_start_requests, self._last_journaled = observation.gateway, None

    def _move(self, share: float) -> None:
        started_at = self._environment.clock()
        self._environment.service.move(share)
        self._journal_move(started_at, self._environment.service.read_by_gateway(_STEP_SECONDS))

    def _is_move_confirmed(self) -> bool:
        """Whether the gateway serves the last move of users; until then nothing is unloaded."""
        started_at = self._environment.clock()
        if not self.state.confirmed and self._environment.service.read_by_gateway(0.0):
            self._journal_move(started_at, True)
        return self.state.confirmed

    def _journal_move(self, started_at: float, confirmed: bool) -> None:
        seconds = round(self._environment.clock() - started_at, 3)
        self._add(JournalEvent.MOVED, {"confirmed": confirmed, "seconds": seconds})

    def _next_step(self, observation: Observation, reason: str) -> None:
        step = self._judge.step + 1
        if step < len(self._settings.steps):
            self._start_step(step, observation)
        else:
            self._finish(JournalEvent.PROMOTED, {"reason": reason})

    def _roll_back(
        self, reason: str, *, at_once: bool, figures: Mapping[str, Any] | None = None
    ) -> None:
        self._finish(
            JournalEvent.ROLLED_BACK,
            {"reason": reason, "at_once": at_once, **({"figures": figures} if figures else {})},
        )

    def _finish(self, event: JournalEvent, about: Mapping[str, Any]) -> None:
        """Journal and apply an outcome; a rollback also proceeds if the disk is full."""
        entry = JournalEntry(self._environment.wall(), event, about)
        try:
            self._write(entry)
        except HostError:
            if event is JournalEvent.PROMOTED:
                raise
            self._apply(entry)
        self._apply_outcome()

    def _apply_outcome(self) -> None:
        """Apply `rolled_back` or `promoted`: move users first, then close open streams."""
        started_at = self._environment.clock()
        if self.state.phase is RolloutPhase.PROMOTED:
            try:
                self._environment.service.make_stable(self._candidate_slot)
            except ServerError as error:  # its servers have just stopped
                self._roll_back(error.problem, at_once=True)
                return
            confirmed = self._environment.service.read_by_gateway(_CONFIRM_SECONDS)
        else:
            confirmed = self._return_users()
        self._journal_move(started_at, confirmed)
        if self.state.outcome.get("at_once") and confirmed:
            self._close()

    def _return_users(self) -> bool:
        """Move all users to stable; return whether the gateway has read it."""
        service = self._environment.service
        if self.state.promoted:
            service.make_stable(self._stable_slot)
        else:
            service.roll_back()
        confirmed = service.read_by_gateway(_CONFIRM_SECONDS)
        if not confirmed and not self.state.promoted:
            service.roll_back()  # Envoy may have missed the rename
            confirmed = service.read_by_gateway(_CONFIRM_SECONDS)
        return confirmed

    def _unload_after_keep_warm(self) -> None:
        """Unload the warm version once its time is over and the gateway serves the outcome."""
        since = self.state.since or 0.0
        at_once = self.state.outcome.get("at_once")
        is_due = not 0 <= self._environment.wall() - since < self._settings.keep_warm_seconds
        if not (at_once or is_due):
            return
        if self._is_move_confirmed():
            self._close()
        elif not self.state.promoted and self._environment.clock() >= self._next_repeat:
            self._next_repeat = self._environment.clock() + _REPEAT_SECONDS
            self._environment.service.roll_back()

    def _close(self) -> None:
        if self.state.closed:
            return
        warm_slot = (
            self._stable_slot if self.state.phase is RolloutPhase.PROMOTED else self._candidate_slot
        )
        try:
            warm_slot = self._environment.service.stop(
                warm_slot, at_once=bool(self.state.outcome.get("at_once"))
            )
        except TritonctlError as error:
            self._add(JournalEvent.CLOSED, {"slot": warm_slot, "problem": error.problem})
            return
        self._add(JournalEvent.CLOSED, {"slot": warm_slot})

    def _journal_decision(self, decision: Decision) -> None:
        """Journal a decision unless the last one is equal and recent."""
        key = decision.status, re.sub(r"\d+", "", decision.reason)
        age = decision.at - self._last_journaled_at
        if key == self._last_journaled and age < self._judge.step_seconds / _DECISIONS_PER_STEP:
            return
        self._last_journaled_at, self._last_journaled = decision.at, key
        about = {"standing": decision.status.value, "reason": decision.reason}
        self._add(JournalEvent.DECISION, about | {"figures": decision.figures})

    def _add(self, event: JournalEvent, about: Mapping[str, Any]) -> None:
        self._write(JournalEntry(self._environment.wall(), event, about))

    def _write(self, entry: JournalEntry) -> None:
        self._journal.add(entry)
        self._apply(entry)

    def _apply(self, entry: JournalEntry) -> None:
        state = apply_entry(self.state, entry)
        assert state is not None  # noqa: S101 - the rollout has started
        self.state = state

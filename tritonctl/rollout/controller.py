# SPDX-License-Identifier: Apache-2.0
"""Takes a loaded candidate to all users, or them back: what it does each second, and after a crash.

Clock, metrics, routes and servers are handed in. What is done is in the journal before it is done,
and may be done twice: a controller that begins anew reads the journal, looks at the routes, and
goes on. Users are taken back also where the journal cannot be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tritonctl.errors import ConfigurationError, HostError, ServerError, TritonctlError
from tritonctl.rollout import evidence
from tritonctl.rollout.asks import Ask, answered, waiting
from tritonctl.rollout.journal import (
    Entry,
    Event,
    Journal,
    Phase,
    State,
    after,
    replay,
    settings_of,
)
from tritonctl.rollout.judge import TIMES, Decision, Judge, Standing
from tritonctl.rollout.metrics import Scrape

# Until the gateway has read what was moved: of a rollback, of a step.
_CONFIRM_SECONDS, _STEP_SECONDS = 5.0, 2.0
# A step's decisions are written every second at first, then at every hundredth of what it lasted,
# and whenever another one is made: a week needs no more than a thousand lines.
_DECISIONS = 100


@dataclass(frozen=True)
class Reached:
    """What has come to the gateway since it began. with_user: requests that say whose they are."""

    requests: int
    with_user: int


@dataclass(frozen=True)
class Seen:
    """What is known at a moment. `gateway`: None: unknown. trouble: why nothing can be."""

    scrape: Scrape
    gateway: Reached | None
    trouble: str = ""


class Scraper(Protocol):
    """The metrics of both versions and of the gateway."""

    def look(self, at: float) -> Seen:
        """Now, at `at` of the monotonic clock; takes a second or two at most, and never raises."""

    def about(self) -> Mapping[str, Any]:
        """What a later scraper needs to go on with it, as JSON holds it."""


class Service(Protocol):
    """What users get: the gateway's routes (`Traffic`), and the servers of both slots.

    Each call may be repeated.
    """

    def share(self) -> float:
        """Per cent of the users that the candidate has."""

    def move(self, share: float) -> None:
        """Give it more."""

    def roll_back(self) -> None:
        """All are stable's, by one rename."""

    def make_stable(self, slot: str) -> None:
        """This slot's servers have all users, and are what the project serves."""

    def read_by_gateway(self, seconds: float) -> bool:
        """Whether the gateway has read the last change of routes, within this time."""

    def stop(self, slot: str, *, at_once: bool) -> str:
        """Unload; returns which. at_once: open streams break, and their clients go on elsewhere."""


@dataclass(frozen=True)
class World:
    """What a controller needs. scraper: one that goes on with what an earlier one was about.

    clock: monotonic seconds; wall: seconds since 1970.
    """

    scraper: Callable[[Mapping[str, Any]], Scraper]
    service: Service
    clock: Callable[[], float]
    wall: Callable[[], float]
    sleep: Callable[[float], object]


class Controller:
    """Of one rollout, in `folder`; `journal` and what it holds are those of `controlling`.

    Raises ConfigurationError for a journal that does not begin a rollout.
    """

    def __init__(
        self, journal: Journal, entries: Sequence[Entry], folder: Path, world: World
    ) -> None:
        self._journal, self._folder, self._world = journal, folder, world
        state = replay(entries)
        try:
            if state is None:
                raise ValueError("nothing was started")
            self._settings = settings_of(state.about)
            self._slot = {"a": "a", "b": "b"}[state.about["slot"]]
        except (KeyError, ValueError) as error:
            raise ConfigurationError(
                f"{folder} has no rollout that can go on: {error}",
                remedy="start one: tritonctl rollout start RELEASE",
            ) from error
        self.state: State = state
        self._other = "b" if self._slot == "a" else "a"
        self._written = 0.0  # when the last decision was
        self._said: tuple[Standing, str] | None = None  # by it
        self._began: Reached | None = None  # of the gateway, when the step began
        self._judge = self._new_judge(world.clock())
        self._scraper: Scraper  # once it is to look

    def run(self) -> None:
        """Until nothing is left to do. Raises what stands in the way once users are back."""
        self._guarded(self.recover)
        due = self._world.clock()
        while self.tick():
            due = max(due + 1.0, self._world.clock())
            self._world.sleep(max(0.0, due - self._world.clock()))

    def recover(self) -> None:
        """What the one before has left: its last act is done again, users stay where they are."""
        if self.state.closed:
            return
        if self.state.ended:
            if not self.state.moved:
                self._carry_out()
            return
        if not self.state.loaded:
            self._roll_back("it was interrupted while the candidate was loaded", at_once=True)
            return
        if {Ask.ABORT, Ask.ABORT_AT_ONCE} & {*waiting(self._folder)}:
            return  # the first thing that the loop does
        if self.state.step is not None and not self._resume_step(self.state.step):
            return
        self._resume_judging()

    def tick(self) -> bool:
        """One look, and what follows; whether there is more to do."""
        if not self.state.closed:
            self._guarded(self._tick)
        return not self.state.closed

    def _guarded(self, act: Callable[[], None]) -> None:
        """Who cannot write down what is done may not go on; back is always possible."""
        try:
            act()
        except HostError as error:
            if self.state.ended:
                raise
            self._roll_back(f"the controller cannot go on: {error.problem}", at_once=False)

    def _tick(self) -> None:
        for ask in waiting(self._folder):
            self._obey(ask)
            answered(self._folder, ask)
        if self.state.ended:
            self._keep_warm()
            return
        at = self._world.clock()
        seen = self._scraper.look(at)
        decision = self._explained(self._judge.observe(seen.scrape), seen)
        self._keep_evidence(at)
        self._note(decision)
        if decision.standing is Standing.ROLLBACK:
            self._roll_back(decision.reason, at_once=True, figures=decision.figures)
        elif self.state.phase is Phase.STARTING:
            if decision.standing is Standing.HEALTHY:
                self._step(0, seen)
        elif self.state.phase is Phase.STEPPING and decision.standing is Standing.PROMOTE_STEP:
            self._next_step(seen, decision.reason)

    def _keep_evidence(self, at: float) -> None:
        began = None if self._began is None else [self._began.requests, self._began.with_user]
        about = {**self._scraper.about(), "began": began}
        evidence.keep(self._folder, self._judge, at, about)

    def _explained(self, decision: Decision, seen: Seen) -> Decision:
        """The judge's, with what the gateway knows about requests that do not come."""
        if decision.standing in (Standing.ROLLBACK, Standing.HOLD):
            return decision
        waits = seen.trouble or self._missing(seen)
        if self.state.step is None:
            standing = Standing.UNKNOWN if waits else Standing.HEALTHY
            reason = f"{waits}: nobody is moved" if waits else "users are here: the first step"
            return replace(decision, standing=standing, reason=reason)
        if decision.standing is Standing.UNKNOWN and waits:
            return replace(decision, reason=f"{decision.reason}: {waits}")
        return decision

    def _missing(self, seen: Seen) -> str:
        """Why no user can come to the candidate; empty when nothing is in the way."""
        if seen.gateway is None:
            return "no metrics of the gateway"
        if seen.scrape.stable is None or seen.scrape.candidate is None:
            return "no metrics of both versions"
        if self._began is None or seen.gateway.requests < self._began.requests:
            self._began = seen.gateway
        requests = seen.gateway.requests - self._began.requests
        with_user = seen.gateway.with_user - self._began.with_user
        if not requests:
            return "no request has come to the gateway"
        if with_user <= 0:
            header = self._settings.user_header
            return f"{requests} requests have come to the gateway, and none has the header {header}"
        return ""

    def _resume_step(self, step: int) -> bool:
        """Whether the users are where the journal says, or can be moved there."""
        steps = self._settings.steps
        try:
            share = self._world.service.share()
        except HostError as error:
            self._roll_back(error.problem, at_once=False)
            return False
        if share == 0 and (self.state.moved or step > 0):  # by somebody else, without us
            self._roll_back("its users were taken back", at_once=False)
            return False
        if not self.state.moved:
            self._move(max(share, steps[step]))
        return True

    def _resume_judging(self) -> None:
        """With what was known, where it was kept; else the step begins anew."""
        at = self._world.clock()
        judge = self._new_judge(at)
        about = evidence.restore(self._folder, judge, at)
        step = self.state.step or 0
        if about is None or judge.step > step:
            judge, about = self._new_judge(at), {}
        if judge.step < step:
            judge.begin_step(step, at)
        self._judge, self._scraper = judge, self._world.scraper(about)
        if began := about.get("began"):
            self._began = Reached(int(began[0]), int(began[1]))

    def _new_judge(self, at: float) -> Judge:
        about = self.state.about
        times, memory = about.get("times", TIMES), about.get("memory", True)
        return Judge(self._settings, at, times=times, memory=memory)

    def _obey(self, ask: Ask) -> None:
        phase, by_hand = self.state.phase, {"reason": "by hand"}
        match ask:
            case Ask.ABORT | Ask.ABORT_AT_ONCE if phase is not Phase.ROLLED_BACK:
                self._roll_back("by hand", at_once=ask is Ask.ABORT_AT_ONCE)
            case Ask.PROMOTE if not self.state.ended and self.state.loaded:
                self._end(Event.PROMOTED, by_hand)
            case Ask.PAUSE if phase in (Phase.STARTING, Phase.STEPPING):
                self._add(Event.PAUSED, by_hand)
            case Ask.RESUME if phase is Phase.HOLDING:
                self._add(Event.RESUMED, by_hand)
            case Ask.CLOSE if self.state.ended:
                self._close()

    def _step(self, step: int, seen: Seen) -> None:
        share = self._settings.steps[step]
        self._add(Event.STEP, {"step": step, "share": share})
        self._move(share)
        self._judge.begin_step(step, self._world.clock())
        self._began, self._said = seen.gateway, None

    def _move(self, share: float) -> None:
        began = self._world.clock()
        self._world.service.move(share)
        self._moved(began, self._world.service.read_by_gateway(_STEP_SECONDS))

    def _moved(self, began: float, confirmed: bool) -> None:
        seconds = round(self._world.clock() - began, 3)
        self._add(Event.MOVED, {"confirmed": confirmed, "seconds": seconds})

    def _next_step(self, seen: Seen, reason: str) -> None:
        step = self._judge.step + 1
        if step < len(self._settings.steps):
            self._step(step, seen)
        else:
            self._end(Event.PROMOTED, {"reason": reason})

    def _roll_back(
        self, reason: str, *, at_once: bool, figures: Mapping[str, Any] | None = None
    ) -> None:
        self._end(
            Event.ROLLED_BACK,
            {"reason": reason, "at_once": at_once, **({"figures": figures} if figures else {})},
        )

    def _end(self, event: Event, about: Mapping[str, Any]) -> None:
        """Say it and do it; a rollback also where the disk is full."""
        entry = Entry(self._world.wall(), event, about)
        try:
            self._write(entry)
        except HostError:
            if event is Event.PROMOTED:
                raise
            self._know(entry)
        self._carry_out()

    def _carry_out(self) -> None:
        """What `rolled_back` or `promoted` said: users first, then the streams that are open."""
        began = self._world.clock()
        if self.state.phase is Phase.PROMOTED:
            try:
                self._world.service.make_stable(self._slot)
            except ServerError as error:  # its servers have just ended
                self._roll_back(error.problem, at_once=True)
                return
            confirmed = self._world.service.read_by_gateway(_CONFIRM_SECONDS)
        else:
            confirmed = self._take_back()
        self._moved(began, confirmed)
        if self.state.end.get("at_once"):
            self._close()

    def _take_back(self) -> bool:
        """Whether the gateway has read it."""
        service = self._world.service
        if self.state.promoted:
            service.make_stable(self._other)
        else:
            service.roll_back()
        confirmed = service.read_by_gateway(_CONFIRM_SECONDS)
        if not confirmed and not self.state.promoted:
            service.roll_back()  # a rename that was missed
            confirmed = service.read_by_gateway(_CONFIRM_SECONDS)
        return confirmed

    def _keep_warm(self) -> None:
        """Until its time is over, then unload it."""
        since = self.state.since or 0.0
        at_once = self.state.end.get("at_once")
        if at_once or not 0 <= self._world.wall() - since < self._settings.keep_warm_seconds:
            self._close()

    def _close(self) -> None:
        if self.state.closed:
            return
        warm = self._other if self.state.phase is Phase.PROMOTED else self._slot
        try:
            warm = self._world.service.stop(warm, at_once=bool(self.state.end.get("at_once")))
        except TritonctlError as error:
            self._add(Event.CLOSED, {"slot": warm, "problem": error.problem})
            return
        self._add(Event.CLOSED, {"slot": warm})

    def _note(self, decision: Decision) -> None:
        """Into the journal, unless the one before says the same and is young."""
        said = decision.standing, re.sub(r"\d+", "", decision.reason)
        age = decision.at - self._written
        if said == self._said and age < self._judge.step_seconds / _DECISIONS:
            return
        self._written, self._said = decision.at, said
        about = {"standing": decision.standing.value, "reason": decision.reason}
        self._add(Event.DECISION, about | {"figures": decision.figures})

    def _add(self, event: Event, about: Mapping[str, Any]) -> None:
        self._write(Entry(self._world.wall(), event, about))

    def _write(self, entry: Entry) -> None:
        self._journal.add(entry)
        self._know(entry)

    def _know(self, entry: Entry) -> None:
        state = after(self.state, entry)
        assert state is not None  # noqa: S101 - it has begun
        self.state = state

# SPDX-License-Identifier: Apache-2.0
"""A service with two releases, as far as a rollout's controller knows it: no server, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.errors import HostError
from tritonctl.rollout.controller import Controller
from tritonctl.rollout.environment import GatewayRequests, Observation, RolloutEnvironment
from tritonctl.rollout.journal import (
    JournalEntry,
    JournalEvent,
    RolloutState,
    open_journal,
    read_journal,
    replay,
)
from tritonctl.rollout.metrics import Counters, Histogram, Scrape

SETTINGS = {
    "user_header": "x-user-id",
    "steps": [5, 50, 100],
    "hold_seconds": 10,
    "minimum_requests": 5,
    "warm_up_seconds": 0,
    "keep_warm_seconds": 60,
}
STARTED = JournalEntry(
    1000.0,
    JournalEvent.STARTED,
    {"settings": SETTINGS, "slot": "b", "release": "2-bbbb", "stable": "1-aaaa"},
)
LOADED = JournalEntry(1001.0, JournalEvent.LOADED, {"times": []})


class Killed(Exception):  # noqa: N818 - no error of ours
    """The controller dies here, as by SIGKILL."""


@dataclass
class Service:
    """What users get; survives the controller. `rate`: requests a second of all users.

    bad: whether the candidate fails every request. deaf: of the gateway's next changes. die_at: the
    act before which the controller is killed, counted from 0. down: slots whose servers have ended;
    their metrics are as silent as those of `silent`, which answer users.
    """

    rate: int = 20
    with_user: bool = True
    bad: bool = False
    deaf: int = 0
    die_at: int | None = None
    now: float = 0.0
    routes: float = 0.0
    stable: str = "a"
    loaded: set[str] = field(default_factory=lambda: {"a", "b"})
    silent: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    acts: list[str] = field(default_factory=list)
    counted: dict[str, list[int]] = field(default_factory=lambda: {"a": [0, 0], "b": [0, 0]})
    reached: list[int] = field(default_factory=lambda: [0, 0])
    exposed: int = 0  # requests that a bad candidate had

    def act(self, what: str) -> None:
        """Note it, or die before it."""
        if self.die_at is not None and len(self.acts) == self.die_at:
            self.die_at = None
            raise Killed(what)
        self.acts.append(what)

    def second(self, _: float = 1.0) -> None:
        """Users ask for a second."""
        self.now += 1.0
        other = "b" if self.stable == "a" else "a"
        theirs = round(self.rate * self.routes / 100) if self.with_user else 0
        if other not in self.loaded:
            theirs = 0  # the gateway asks stable
        self.reached[0] += self.rate
        self.reached[1] += self.rate if self.with_user else 0
        for slot, requests in ((self.stable, self.rate - theirs), (other, theirs)):
            self.counted[slot][0] += requests
            if self.bad and slot == "b":
                self.counted[slot][1] += requests
                self.exposed += requests

    def share(self) -> float:
        return self.routes

    def move(self, share: float) -> None:
        self.act(f"move {share:g}")
        self.routes = share

    def roll_back(self) -> None:
        self.act("roll back")
        self.routes = 0.0

    def make_stable(self, slot: str) -> None:
        self.act(f"stable {slot}")
        self.stable, self.routes = slot, 0.0

    def read_by_gateway(self, seconds: float) -> bool:
        assert seconds <= 5
        self.deaf -= 1
        return self.deaf < 0

    def stop(self, slot: str, *, at_once: bool) -> str:
        self.act(f"stop {slot}{' at once' if at_once else ''}")
        self.loaded.discard(slot)
        return slot

    def observe(self, at: float) -> Observation:
        """The scraper's."""
        stable, candidate = self.counters("a"), self.counters("b")
        reached = GatewayRequests(self.reached[0], self.reached[1])
        return Observation(
            Scrape(at, stable, candidate, stable_ready="a" not in self.down), reached
        )

    def saved_state(self) -> Mapping[str, Any]:
        return {"shadowed": 7}

    def counters(self, slot: str) -> Counters | None:
        """Of a version that runs and is heard of."""
        if slot not in self.loaded or slot in self.silent | self.down:
            return None
        requests, failures = self.counted[slot]
        times = {"ttft": Histogram((0.1, 0.2), (0, requests - failures, 0))}
        return Counters(requests, failures, times)


class Rollouts:
    """One rollout in a folder, with controllers that come and go."""

    def __init__(self, folder: Path, service: Service) -> None:
        self.rollouts, self.folder, self.service = folder, folder / "1", service
        self.abouts: list[Mapping[str, Any]] = []
        with open_journal(folder, 1) as (journal, _):
            for entry in (STARTED, LOADED):
                journal.add(entry)

    def run(
        self, seconds: int = 300, each: Callable[[Controller], object] | None = None
    ) -> RolloutState:
        """A controller until it is done, it dies, or so many seconds are over."""
        with ExitStack() as held:
            journal, entries = held.enter_context(open_journal(self.rollouts, 1))
            try:
                controller = Controller(journal, entries, self.folder, self.world())
                controller.recover()
                for _ in range(seconds):
                    if each is not None:
                        each(controller)
                    if not controller.tick():
                        break
                    self.service.second()
            except Killed:
                pass
        return self.state

    @property
    def state(self) -> RolloutState:
        """By the journal."""
        state = replay(read_journal(self.folder))
        assert state is not None
        return state

    def events(self) -> list[str]:
        """All but decisions."""
        return [
            e.event.value for e in read_journal(self.folder) if e.event is not JournalEvent.DECISION
        ]

    def confirmations(self) -> list[bool]:
        """Whether the gateway served each move, in order."""
        moves = (e for e in read_journal(self.folder) if e.event is JournalEvent.MOVED)
        return [bool(entry.details["confirmed"]) for entry in moves]

    def decisions(self) -> list[Mapping[str, Any]]:
        """What the judge said."""
        return [e.details for e in read_journal(self.folder) if e.event is JournalEvent.DECISION]

    def world(self) -> RolloutEnvironment:
        """For a controller; notes what its scrapers go on with."""
        return world_of(self.service, self.service.second, self.abouts)


def world_of(
    service: Service,
    sleep: Callable[[float], object],
    abouts: list[Mapping[str, Any]] | None = None,
) -> RolloutEnvironment:
    """A controller's. abouts: collects what its scrapers go on with."""

    def scraper(about: Mapping[str, Any]) -> Service:
        if abouts is not None:
            abouts.append(about)
        return service

    return RolloutEnvironment(
        scraper, service, lambda: service.now, lambda: 1002.0 + service.now, sleep
    )


def no_room(*_: object) -> None:
    """Stands for a write to a full disk."""
    raise HostError("no space left", remedy="free some")

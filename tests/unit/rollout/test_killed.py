# SPDX-License-Identifier: Apache-2.0
"""What a kill leaves, state by state: who has the users, and what the next controller does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import pytest

from tests.fakes.rollout_world import Killed, Rollouts, Service, world_of
from tritonctl.protocol.metrics import Metrics
from tritonctl.rollout.environment import RolloutEnvironment
from tritonctl.rollout.journal import Journal, JournalEntry, JournalEvent, RolloutPhase
from tritonctl.rollout.operator_commands import OperatorCommand, submit_command
from tritonctl.rollout.scraping import MetricsScraper, ScrapeTarget
from tritonctl.top.figures import ModelLayout

GOOD = ["move 5", "move 50", "move 100", "stable b", "stop a"]
BAD = ["move 5", "roll back", "stop b at once"]
ALL_USERS = 26  # seconds until the candidate has them for a few
WARM = 60  # seconds


def once_each(acts: Sequence[str]) -> list[str]:
    """Without what was done twice in a row."""
    return [act for act, _ in groupby(acts)]


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Kill the controller before it writes its line of this number; decisions do not count."""
    add, left = Journal.add, [-1]

    def counted(journal: Journal, entry: JournalEntry) -> None:
        if entry.event is not JournalEvent.DECISION:
            left[0] -= 1
            if left[0] == -1:
                raise Killed(entry.event)
        add(journal, entry)

    def begin(number: int) -> None:
        left[0] = number

    monkeypatch.setattr(Journal, "add", counted)
    return begin


@pytest.mark.parametrize(("bad", "acts", "lines"), [(False, GOOD, 9), (True, BAD, 5)])
def test_before_every_line(
    tmp_path: Path, dying: Callable[[int], None], bad: bool, acts: list[str], lines: int
) -> None:
    """Of the journal: the act before it was done or not, and the end is the same."""
    for number in range(lines):
        made = Rollouts(tmp_path / str(number), Service(bad=bad))
        dying(number)
        made.run()
        assert not made.state.closed
        assert made.run().closed
        assert once_each(made.service.acts) == acts
        assert (made.service.routes, made.service.stable) == (0, "a" if bad else "b")


def test_while_it_is_held(tmp_path: Path) -> None:
    """Users stay, no step is taken, what is seen counts; who fails is taken back all the same."""
    made = Rollouts(tmp_path, Service())
    made.run(5)
    submit_command(made.folder, OperatorCommand.PAUSE)
    for _ in range(5):
        assert made.run(7).phase is RolloutPhase.HOLDING
    assert (made.service.acts, made.service.routes) == (["move 5"], 5)
    assert made.decisions()[-1]["figures"]["step_seconds"] > 30
    made.service.bad = True
    made.run(1)
    assert made.run(30).phase is RolloutPhase.ROLLED_BACK
    assert made.service.routes == 0


@pytest.mark.parametrize(
    ("ask", "phase", "warm"),
    [
        (OperatorCommand.PROMOTE, RolloutPhase.PROMOTED, "a"),
        (OperatorCommand.ABORT, RolloutPhase.ROLLED_BACK, "b"),
    ],
)
def test_while_the_other_is_warm(
    tmp_path: Path, ask: OperatorCommand, phase: RolloutPhase, warm: str
) -> None:
    """Nobody is moved again, and it stays loaded as long as without a kill."""
    made = Rollouts(tmp_path, Service())
    made.run(5)
    submit_command(made.folder, ask)
    made.run(1)
    acts, began = [*made.service.acts], made.service.now - 1
    while not made.state.closed:
        assert made.run(7).phase is phase
    assert WARM <= made.service.now - began <= WARM + 7
    assert made.service.acts == [*acts, f"stop {warm}"]
    assert made.service.routes == 0


@pytest.mark.parametrize("slot", ["a", "b"])
def test_taken_back_after_a_promotion(
    tmp_path: Path, dying: Callable[[int], None], slot: str
) -> None:
    """The controller dies before it has led back, or before it has said so."""
    made = Rollouts(tmp_path, Service())
    made.run(5)
    submit_command(made.folder, OperatorCommand.PROMOTE)
    made.run(1)
    submit_command(made.folder, OperatorCommand.ABORT)
    if slot == "a":
        dying(1)
    else:
        made.service.die_at = len(made.service.acts)
    made.run(1)
    assert made.service.stable == slot
    assert made.run().phase is RolloutPhase.ROLLED_BACK
    assert once_each(made.service.acts) == ["move 5", "stable b", "stable a", "stop b"]


@pytest.mark.parametrize(
    ("ask", "phase"),
    [
        (OperatorCommand.PROMOTE, RolloutPhase.PROMOTED),
        (OperatorCommand.PAUSE, RolloutPhase.HOLDING),
        (OperatorCommand.ABORT, RolloutPhase.ROLLED_BACK),
        (OperatorCommand.ABORT_AT_ONCE, RolloutPhase.ROLLED_BACK),
    ],
)
def test_asked_of_nobody(tmp_path: Path, ask: OperatorCommand, phase: RolloutPhase) -> None:
    """While none runs: the next one answers first."""
    made = Rollouts(tmp_path, Service())
    made.run(5)
    if phase is RolloutPhase.ROLLED_BACK:
        made.service.roll_back()  # as the command does by itself
    submit_command(made.folder, ask)
    state = made.run(1)
    assert (state.phase, state.reason) == (phase, "by hand")


def test_envoy_counts_anew_meanwhile(tmp_path: Path) -> None:
    """It was killed, too: the rollout goes on."""
    made = Rollouts(tmp_path, Service())
    made.run(ALL_USERS)
    made.service.reached = [0, 0]
    assert made.run().phase is RolloutPhase.PROMOTED


@pytest.mark.parametrize(
    ("slot", "phase"), [("a", RolloutPhase.PROMOTED), ("b", RolloutPhase.ROLLED_BACK)]
)
def test_a_server_counts_anew_meanwhile(tmp_path: Path, slot: str, phase: RolloutPhase) -> None:
    """That is a fault of the candidate's, and none of it where stable was started again."""
    made = Rollouts(tmp_path, Service())
    made.run(ALL_USERS)
    made.service.counted[slot] = [0, 0]
    assert made.run().phase is phase


def test_stable_is_down(tmp_path: Path) -> None:
    """For longer than metrics may stay away: nobody is led there, until it is back."""
    made = Rollouts(tmp_path, Service())
    made.run(ALL_USERS)
    made.service.down.add("a")
    assert made.run(60).phase is RolloutPhase.STEPPING
    assert made.decisions()[-1]["reason"].startswith("stable is down: users stay where they are")
    assert made.service.routes == 100
    made.service.down.clear()
    made.service.counted["a"] = [0, 0]
    assert made.run().phase is RolloutPhase.PROMOTED


def test_stable_is_silent(tmp_path: Path) -> None:
    """It answers users, and its metrics have died: they are taken back to it."""
    made = Rollouts(tmp_path, Service())
    made.run(ALL_USERS)
    made.service.silent.add("a")
    state = made.run(30)
    assert state.phase is RolloutPhase.ROLLED_BACK
    assert "no metrics of stable" in state.reason


@dataclass
class Published(Service):
    """Its metrics are pages. between: pages that show new large buckets, and old small ones."""

    between: bool = False
    shown: dict[str, int] = field(default_factory=dict)

    def page(self, url: str, _: float) -> Metrics:
        """Of a slot, or of Envoy; of a release that publishes no number of all times."""
        if not url.startswith("slot"):
            users = f'envoy_vhost_route_upstream_rq_total{{envoy_route="users"}} {self.reached[1]}'
            return Metrics.parse(f"{users}\n")
        slot = url[-1]
        every = self.counted[slot][0]
        small = self.shown.get(slot, 0) if self.between else every
        self.shown[slot] = small
        buckets = {"0.1": 0, "0.2": small, "5.0": every, "+Inf": every}
        lines = [
            f'nv_inference_request_success{{model="m"}} {every}',
            *(
                f'tritonctl_time_to_first_token_seconds_bucket{{model="m",le="{bound}"}} {count}'
                for bound, count in buckets.items()
            ),
        ]
        return Metrics.parse("".join(f"{line}\n" for line in lines))


class ByPages(Rollouts):
    """With the scraper of real rollouts."""

    service: Published

    def world(self) -> RolloutEnvironment:
        """As on one host."""

        def scraper(about: dict[str, object]) -> MetricsScraper:
            return MetricsScraper(
                ScrapeTarget(["slot a"], ModelLayout()),
                ScrapeTarget(["slot b"], ModelLayout()),
                lambda: "envoy",
                scrape=self.service.page,
                saved=about,
            )

        made = world_of(self.service, self.service.second, self.abouts)
        return replace(made, scraper=scraper)  # type: ignore[arg-type]


def test_after_a_page_from_between_two_buckets(tmp_path: Path) -> None:
    """Its late requests stay counted: the next controller, which sees fewer, sees no restart."""
    made = ByPages(tmp_path, Published())
    made.run(ALL_USERS)
    made.service.between = True
    made.run(1)
    made.service.between = False
    state = made.run(1)
    assert state.phase is RolloutPhase.STEPPING, state.reason
    assert made.run().phase is RolloutPhase.PROMOTED

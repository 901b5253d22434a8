# SPDX-License-Identifier: Apache-2.0
"""The judge: what it knows decides, and what it does not know is never healthy."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tritonctl.project.rollout import Rollout
from tritonctl.rollout.judge import RESPONSE, SHARES, TTFT, Decision, DecisionStatus, Judge
from tritonctl.rollout.metrics import Counters, Distances, Histogram, Scrape

BOUNDS = tuple(50 * 1.1**place for place in range(30))
ROLLOUT = Rollout(steps=[5, 50, 100], hold_seconds=30, minimum_requests=20, warm_up_seconds=5)


@dataclass
class Version:
    """Servers of one version, at a steady rate. `fails`: every so many; `ms`: TTFT."""

    rate: int
    fails: int = 0
    ms: float = 100.0
    memory: float = 1e9
    leak: float = 0.0
    requests: int = 0
    failures: int = 0
    stalls: int = 0  # every so many
    stalled: int = 0

    def __post_init__(self) -> None:
        """Nothing counted yet."""
        self.counts = [0] * (len(BOUNDS) + 1)

    def second(self, draw: random.Random) -> Counters:
        """What it counts a second later."""
        for _ in range(self.rate):
            self.requests += 1
            self.failures += bool(self.fails) and self.requests % self.fails == 0
            self.stalled += bool(self.stalls) and self.requests % self.stalls == 0
            took = self.ms * draw.lognormvariate(0, 0.3)
            self.counts[sum(took > bound for bound in BOUNDS)] += 1
        self.memory += self.leak
        times = {"ttft": Histogram(BOUNDS, tuple(self.counts))}
        wobble = draw.gauss(0, 1e6)
        memory = int(self.memory + wobble)
        return Counters(self.requests, self.failures, times, memory, self.stalled)


Change = Callable[[int, Scrape], Scrape]


def as_it_is(_: int, scrape: Scrape) -> Scrape:
    """Nothing lost."""
    return scrape


def asked_again(*found: Distances) -> Change:
    """These answers each second; Triton counts each question, stable's twice, and no engine times
    it.
    """

    def change(second: int, scrape: Scrape) -> Scrape:
        assert scrape.stable is not None
        assert scrape.candidate is not None
        more = (second + 1) * len(found)
        stable = replace(scrape.stable, requests=scrape.stable.requests + 2 * more)
        candidate = replace(scrape.candidate, requests=scrape.candidate.requests + more)
        return replace(scrape, stable=stable, candidate=candidate, answers=found)

    return change


def run(
    candidate: Version,
    stable: Version | None = None,
    *,
    seconds: int = 300,
    change: Change = as_it_is,
    rollout: Rollout = ROLLOUT,
) -> list[Decision]:
    """A rollout to its rollback, its end or these seconds; steps follow the judge."""
    draw = random.Random(2)  # noqa: S311 - a seeded experiment
    judge = Judge(rollout, 0.0, times=("ttft",))
    stable = stable or Version(19)
    step, decisions = 0, []
    for second in range(seconds):
        scrape = Scrape(float(second), stable.second(draw), candidate.second(draw))
        decisions.append(judge.observe(change(second, scrape)))
        if decisions[-1].status is DecisionStatus.ROLLBACK:
            break
        if decisions[-1].status is DecisionStatus.PROMOTE_STEP:
            step += 1
            if step == len(rollout.steps):
                break
            judge.begin_step(step, float(second))
            stable.rate, candidate.rate = [(10, 10), (0, 20)][step - 1]
    return decisions


def test_a_version_that_is_no_worse() -> None:
    """Each step lasts as long as it must, then the next; the figures say so."""
    decisions = run(Version(1))
    promoted = [one for one in decisions if one.status is DecisionStatus.PROMOTE_STEP]
    assert [one.at for one in promoted] == [30, 60, 90]
    assert decisions[0].status is DecisionStatus.INCONCLUSIVE
    assert {one.status for one in decisions[1:]} == {
        DecisionStatus.HEALTHY,
        DecisionStatus.PROMOTE_STEP,
    }
    figures = json.loads(json.dumps(promoted[-1].figures))
    assert (figures["step"], figures["limit"]) == (2, 100)
    assert figures["candidate"] == {"requests": 30 + 300 + 600, "failures": 0}


@pytest.mark.parametrize(
    ("candidate", "reason", "until"),
    [
        (Version(1, fails=1), "its requests fail more often", 5),
        (Version(1, fails=5), "its requests fail more often", 20),
        (Version(1, leak=3e6), "its memory grows", 70),
    ],
)
def test_faults_at_the_first_step(candidate: Version, reason: str, until: int) -> None:
    """One request a second of twenty: found within seconds, by what they break."""
    last = run(candidate)[-1]
    assert last.status is DecisionStatus.ROLLBACK
    assert last.reason.startswith(reason)
    assert last.at <= until
    assert last.figures["step"] in (0, 1)


@pytest.mark.parametrize(("slow_seconds", "until"), [(0, 25), (15, 40), (120, 150)])
def test_a_slower_release(slow_seconds: float, until: int) -> None:
    """Held in its first step for as long as it may be a phase, and then rolled back."""
    tolerated = ROLLOUT.tolerated.model_copy(update={"slow_seconds": slow_seconds})
    rollout = ROLLOUT.model_copy(update={"tolerated": tolerated})
    decisions = run(Version(1, ms=200), rollout=rollout)
    last = decisions[-1]
    assert last.status is DecisionStatus.ROLLBACK
    assert last.reason == "its first tokens take longer than stable's"
    assert slow_seconds < last.at <= until
    assert last.figures["step"] == 0
    held = [one for one in decisions if one.status is DecisionStatus.HOLD]
    assert all("its first tokens take longer" in one.reason for one in held)
    assert len(held) > slow_seconds / 2


def test_a_slow_phase_of_a_sound_release() -> None:
    """No step while it lasts, and no rollback."""
    candidate = Version(1)
    tolerated = ROLLOUT.tolerated.model_copy(update={"slow_seconds": 60})
    rollout = ROLLOUT.model_copy(update={"tolerated": tolerated})

    def slow(second: int, scrape: Scrape) -> Scrape:
        candidate.ms = 300 if 10 < second < 60 else 100
        return scrape

    decisions = run(candidate, change=slow, rollout=rollout)
    promoted = [one.at for one in decisions if one.status is DecisionStatus.PROMOTE_STEP]
    assert len(promoted) == 3
    assert 60 <= promoted[0] <= 120


def test_requests_that_stand_still() -> None:
    """One in two hundred, none of which has failed yet; of both it is nobody's fault."""
    rollout = ROLLOUT.model_copy(update={"hold_seconds": 60.0})
    last = run(Version(1, stalls=200), rollout=rollout)[-1]
    assert last.status is DecisionStatus.ROLLBACK
    assert last.reason == "more of its requests stall than stable's"
    assert last.figures["candidate"]["failures"] == 0
    both = run(Version(1, stalls=200), Version(19, stalls=200), rollout=rollout)[-1]
    assert both.status is DecisionStatus.PROMOTE_STEP


@pytest.mark.parametrize("share", [3, 17, 60])
def test_who_fails_asks_again(share: int) -> None:
    """All its requests fail and come again, so that it has most of them: found all the same."""
    last = run(Version(share, fails=1), Version(6))[-1]
    assert last.status is DecisionStatus.ROLLBACK
    assert last.at <= 20


@pytest.mark.parametrize(("share", "status"), [(1.0, "HOLD"), (0.2, "HOLD"), (0.0, "PROMOTE_STEP")])
def test_answers_without_tokens_are_not_healthy(share: float, status: str) -> None:
    """They end without an error and have no times: no more users for such a release."""

    def empty(_: int, scrape: Scrape) -> Scrape:
        assert scrape.candidate is not None
        histogram = scrape.candidate.times["ttft"]
        counts = tuple(int(count * (1 - share)) for count in histogram.counts)
        times = {"ttft": Histogram(BOUNDS, counts)} if share < 1 else {}
        return replace(scrape, candidate=replace(scrape.candidate, times=times))

    rollout = ROLLOUT.model_copy(update={"steps": [100]})
    last = run(Version(5), seconds=60, change=empty, rollout=rollout)[-1]
    assert last.status is DecisionStatus[status]
    assert ("answers had no tokens" in last.reason) == (status == "HOLD")


def test_no_step_on_top_of_failures() -> None:
    """Too few for a rollback, too many for more users."""
    rollout = ROLLOUT.model_copy(update={"hold_seconds": 3})
    last = run(Version(3, fails=4), Version(1), seconds=8, rollout=rollout)[-1]
    assert (last.status, last.figures["step"]) == (DecisionStatus.HOLD, 0)


def test_a_leak_of_four_megabytes_a_second() -> None:
    """Within half a minute of its first request, its warm-up of ten seconds among it."""
    rollout = ROLLOUT.model_copy(update={"warm_up_seconds": 10.0})
    last = run(Version(1, memory=350e6, leak=4.19e6), Version(19, memory=350e6), rollout=rollout)[
        -1
    ]
    assert last.reason == "its memory grows"
    assert last.at < 30
    assert last.figures["step"] == 0


@pytest.mark.parametrize(("stables", "found"), [(1e9, True), (1.6e9, False)])
def test_memory_that_fills_up(stables: float, found: bool) -> None:
    """A candidate may come to need what stable needs; beyond that it grows."""
    rollout = ROLLOUT.model_copy(update={"hold_seconds": 1000})
    last = run(Version(1, leak=3e6), Version(19, memory=stables), seconds=100, rollout=rollout)[-1]
    assert (last.status is DecisionStatus.ROLLBACK) is found


def test_memory_that_is_not_known() -> None:
    """Of stable: nothing says how much is needed. Where no server tells it, others have its part
    of the rate.
    """

    def untold(_: int, scrape: Scrape) -> Scrape:
        assert scrape.stable is not None
        return replace(scrape, stable=replace(scrape.stable, memory_bytes=None))

    decisions = run(Version(1, leak=4e6), change=untold)
    assert [one for one in decisions if one.status is DecisionStatus.ROLLBACK] == []
    figures = Judge(ROLLOUT, 0.0, memory=False).observe(Scrape(1.0, None, None)).figures
    assert "memory" not in figures["evidence"]
    assert sum(figures["weights"].values()) == pytest.approx(1, abs=0.001)


def test_a_task_without_tokens() -> None:
    """Its answers' whole times count, as the gateway has them."""
    draw = random.Random(3)  # noqa: S311 - a seeded experiment
    judge = Judge(ROLLOUT, 0.0, times=[RESPONSE])
    versions = Version(19), Version(1, ms=200)
    for second in range(200):
        stable, candidate = (
            replace(each, times={RESPONSE: each.times["ttft"]})
            for each in (version.second(draw) for version in versions)
        )
        decision = judge.observe(Scrape(float(second), stable, candidate))
        if decision.status is DecisionStatus.ROLLBACK:
            break
    assert decision.reason == "its answers take longer than stable's"


def test_fewer_tokens_a_second() -> None:
    """Pauses of a second, in one of forty times between tokens: hardly a time is longer."""
    draw = random.Random(3)  # noqa: S311 - a seeded experiment
    judge = Judge(ROLLOUT, 0.0, times=("ttft", "itl"))
    versions, seconds = (Version(19), Version(2)), [0.0, 0.0]
    counted = [[0, 0], [0, 0]]
    for second in range(200):
        counters = []
        for place, version in enumerate(versions):
            long = sum(draw.random() < 0.025 * place for _ in range(20 * version.rate))
            counted[place][0] += 20 * version.rate - long
            counted[place][1] += long
            seconds[place] += long + 0.2 * version.rate * draw.lognormvariate(0, 0.05)
            itl = Histogram((0.5,), (counted[place][0], counted[place][1]))
            found = version.second(draw)
            times = {**found.times, "itl": itl}
            counters.append(replace(found, times=times, token_seconds=seconds[place]))
        decision = judge.observe(Scrape(float(second), counters[0], counters[1]))
        if decision.status is DecisionStatus.ROLLBACK:
            break
    assert decision.reason == "it makes fewer tokens a second than stable"


def test_slower_than_stable_was() -> None:
    """With all users, and no stable beside: no step on top, and no rollback, until it is over."""
    candidate = Version(1)

    def slow(second: int, scrape: Scrape) -> Scrape:
        candidate.ms = 140 if 250 < second < 400 else 100
        return scrape

    rollout = ROLLOUT.model_copy(update={"hold_seconds": 120})
    decisions = run(candidate, change=slow, rollout=rollout, seconds=500)
    held = [one for one in decisions if one.status is DecisionStatus.HOLD and one.at > 240]
    assert {one.reason for one in held} == {
        "its answers start later than stable's did at a similar load"
    }
    assert 270 <= held[0].at <= 300
    assert 400 <= held[-1].at <= 450
    assert decisions[-1].status is DecisionStatus.PROMOTE_STEP


def test_failures_of_both() -> None:
    """A service that fails for everybody is not the candidate's doing."""
    assert run(Version(1, fails=4), Version(19, fails=4))[-1].status is DecisionStatus.PROMOTE_STEP


def test_failures_where_stable_has_no_requests() -> None:
    """The last step: more than is tolerated is rolled back, without anything to compare with."""
    candidate = Version(1)

    def fail_late(second: int, scrape: Scrape) -> Scrape:
        candidate.fails = 20 if second > 65 else 0
        return scrape

    last = run(candidate, change=fail_late)[-1]
    assert (last.status, last.figures["step"]) == (DecisionStatus.ROLLBACK, 2)
    assert last.reason == "more of its requests fail than is tolerated"


def test_answers_that_differ() -> None:
    """Shadowed questions: six of another text are enough, noise is not."""
    shadowed = ROLLOUT.model_copy(update={"shadow": 0.1})
    wrong = run(Version(1), change=asked_again(Distances(0, 1)), rollout=shadowed)[-1]
    assert wrong.reason == "its answers differ from stable's, beyond stable's own noise"
    assert wrong.at <= 8
    noisy = run(Version(1), change=asked_again(Distances(1, 1)), rollout=shadowed)[-1]
    assert noisy.status is DecisionStatus.PROMOTE_STEP


def test_questions_of_the_shadow_are_no_users() -> None:
    """Five a second beside a user's one: the step waits for its users, told by their number."""
    wanted = ROLLOUT.model_copy(update={"shadow": 0.1, "minimum_requests": 40})
    decisions = run(Version(1), change=asked_again(*[Distances(0, 0)] * 5), rollout=wanted)
    promoted = next(one for one in decisions if one.status is DecisionStatus.PROMOTE_STEP)
    assert (promoted.at, promoted.reason) == (40, "40 requests in 40 s")
    assert promoted.figures["step_requests"] == 40
    assert promoted.figures["candidate"]["requests"] == 40 * (1 + 5)


@pytest.mark.parametrize("group", ["stable", "candidate"])
def test_metrics_that_stay_away(group: str) -> None:
    """Unknown at once, rolled back after the stated time, never healthy in between."""

    def lose(second: int, scrape: Scrape) -> Scrape:
        if second < 10:
            return scrape
        return (
            replace(scrape, stable=None) if group == "stable" else replace(scrape, candidate=None)
        )

    decisions = run(Version(1), change=lose)
    assert {one.status for one in decisions[10:-1]} == {DecisionStatus.INCONCLUSIVE}
    assert decisions[-1].status is DecisionStatus.ROLLBACK
    assert decisions[-1].reason == f"no metrics of {group} for 11 s"
    assert decisions[-1].at == 20


def test_metrics_that_were_never_there() -> None:
    """The time counts from the beginning."""
    last = run(Version(1), change=lambda _, scrape: replace(scrape, candidate=None))[-1]
    assert (last.status, last.at) == (DecisionStatus.ROLLBACK, 11)


def test_a_scrape_that_is_lost() -> None:
    """One of three: the step goes on, nothing is judged twice."""

    def lose(second: int, scrape: Scrape) -> Scrape:
        return replace(scrape, candidate=None) if second % 3 == 1 else scrape

    decisions = run(Version(1), change=lose)
    assert decisions[-1].status is DecisionStatus.PROMOTE_STEP
    assert decisions[-1].figures["candidate"]["failures"] == 0


def test_metrics_that_stand_still() -> None:
    """An endpoint that answers the same while Envoy sends requests is as good as dead."""
    frozen: list[Scrape] = []

    def freeze(second: int, scrape: Scrape) -> Scrape:
        frozen.append(scrape)
        kept = frozen[min(second, 10)]
        return replace(scrape, candidate=kept.candidate, sent=2 * second)

    last = run(Version(2), change=freeze)[-1]
    assert last.status is DecisionStatus.ROLLBACK
    assert last.reason.startswith(
        "22 requests were sent to candidate in 11 s, and none has started"
    )


def test_a_candidate_that_restarts() -> None:
    """It counts from 0 again: it has crashed, whoever restarted it."""

    def crash(second: int, scrape: Scrape) -> Scrape:
        return replace(scrape, candidate=Counters(1, 0)) if second == 12 else scrape

    last = run(Version(1), change=crash)[-1]
    assert (last.at, last.reason) == (12, "the candidate's counters were reset: it restarted")


def test_counts_that_begin_anew_for_both() -> None:
    """Whoever counts was restarted: one moment is unknown."""

    def restart(second: int, scrape: Scrape) -> Scrape:
        return Scrape(12.0, Counters(0, 0), Counters(0, 0)) if second == 12 else scrape

    decisions = run(Version(1), change=restart)
    assert decisions[12].status is DecisionStatus.INCONCLUSIVE
    assert decisions[-1].status is DecisionStatus.PROMOTE_STEP


def test_no_traffic() -> None:
    """Nothing is known of a candidate without a request, however long it waits."""
    decisions = run(Version(0))
    assert {one.status for one in decisions} == {DecisionStatus.INCONCLUSIVE}
    assert decisions[-1].reason == "no request to the candidate in this step yet"


def test_few_requests() -> None:
    """A step is as long as its least requests need."""
    slow = ROLLOUT.model_copy(update={"minimum_requests": 100})
    promoted = [one for one in run(Version(1), rollout=slow) if one.status == "promote_step"]
    assert next(iter(promoted)).figures["step_requests"] == 100


def test_suspicion_holds_a_step() -> None:
    """Evidence that is not enough to roll back is enough not to go on."""
    candidate = Version(1)

    def fail_twice(second: int, scrape: Scrape) -> Scrape:
        candidate.fails = 1 if second in (27, 28) else 0
        return scrape

    decisions = run(candidate, change=fail_twice)
    held = decisions[31]
    assert held.status is DecisionStatus.HOLD
    assert held.reason == "it may be that its requests fail more often than stable's"


def test_a_cold_start_is_no_fault() -> None:
    """Times are judged once the candidate is warm."""
    candidate = Version(1)

    def warm(second: int, scrape: Scrape) -> Scrape:
        candidate.ms = 1000 if second < 4 else 100
        return scrape

    assert run(candidate, change=warm)[-1].status is DecisionStatus.PROMOTE_STEP


def test_time_does_not_go_back() -> None:
    """The caller's clock is a monotonic one."""
    judge = Judge(ROLLOUT, 10.0)
    with pytest.raises(ValueError, match=r"a scrape of 9\.0 after 10\.0"):
        judge.observe(Scrape(9.0, None, None))


def test_the_shares_are_one() -> None:
    """All tests together spend the stated rate, no more."""
    assert sum(SHARES.values()) - SHARES[RESPONSE] == pytest.approx(1)
    assert SHARES[RESPONSE] == SHARES[TTFT]  # one or the other


def test_prometheus_buckets() -> None:
    """Each counts those before it, too."""
    assert Histogram.cumulative([1, 2], [3, 3, 7]).counts == (3, 0, 4)
    with pytest.raises(ValueError, match="2 counts for 2 bounds"):
        Histogram((1, 2), (3, 4))
    with pytest.raises(ValueError, match="bounds do not rise"):
        Histogram((2, 1), (3, 4, 5))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([1, 5, 5, 100], "steps must increase: 5 follows 5"),
        ([1, 50], "steps end at 50: the last must be 100"),
        ([0, 100], "greater than 0"),
        ([], "at least 1 item"),
        ([1, 101], "less than or equal to 100"),
    ],
)
def test_steps_that_are_none(steps: list[float], said: str) -> None:
    """Told before anybody is moved."""
    with pytest.raises(ValueError, match=said):
        Rollout(steps=steps)

# SPDX-License-Identifier: Apache-2.0
"""Judges a candidate beside stable, second by second: go on, hold, or roll back, and why.

What is not known is never healthy: it holds the step, and after a stated time it rolls back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tritonctl.project.rollout import Rollout
from tritonctl.rollout.metrics import Moment, Scrape
from tritonctl.rollout.pace import Pace, Tokens
from tritonctl.rollout.past import Past
from tritonctl.rollout.presence import Presence
from tritonctl.rollout.sequential import (
    Divergence,
    Failures,
    FailuresAlone,
    Growth,
    Verdict,
    combined,
)
from tritonctl.rollout.slower import Slower, in_shared_buckets, mean_of, places_of
from tritonctl.rollout.stalls import Stalls

FAILURES, ALONE, DIVERGENCE, MEMORY = "failures", "failures_alone", "divergence", "memory"
STALLS = "stalls"
TTFT, ITL, TOKEN_RATE = "ttft", "itl", "tokens_per_second"
RESPONSE = "response"  # of tasks without tokens: until the whole answer, as the gateway sees it
# What each test may spend of the false-rollback rate; one that is not used leaves it to others.
SHARES = {
    FAILURES: 0.36,
    TTFT: 0.32,  # or RESPONSE
    STALLS: 0.13,
    DIVERGENCE: 0.08,
    ITL: 0.04,
    TOKEN_RATE: 0.03,  # of the servers that count ITL
    MEMORY: 0.02,
    ALONE: 0.02,
}
SHARES[RESPONSE] = SHARES[TTFT]
TIMES = (TTFT, ITL)
_WHAT = {
    FAILURES: "its requests fail more often than stable's",
    ALONE: "more of its requests fail than is tolerated",
    DIVERGENCE: "its answers differ from stable's, beyond stable's own noise",
    MEMORY: "its memory grows",
    STALLS: "more of its requests stand still than stable's",
    TTFT: "its first tokens take longer than stable's",
    RESPONSE: "its answers take longer than stable's",
    ITL: "its tokens are further apart than stable's",
    TOKEN_RATE: "it makes fewer tokens a second than stable",
}
# Beyond this share of the requests the candidate is the busier one: its times prove nothing.
_MOST_SHARE = 0.55
_MORE = 2.0  # times the failures that stable had, where it has none to compare with
# Servers that get their first users grow by some tens of MB, steadily: 60 MB in a minute was seen.
_LEAST_GROWTH = 50e6  # bytes within half a minute
_LEAST_SURGE = 40e6  # within a quarter: what grows that fast is not waited for
_SUSPICIOUS = 0.1  # of the limit: no further step while the evidence is that near
_FEW = 2  # failures of a step that are nothing


class Standing(StrEnum):
    """What follows from what is known."""

    UNKNOWN = "unknown"  # too little is known: the step goes on
    HEALTHY = "healthy"  # the step is not over
    HOLD = "hold"  # evidence against it that is not enough yet: the step goes on
    PROMOTE_STEP = "promote_step"
    ROLLBACK = "rollback"


@dataclass(frozen=True)
class Decision:
    """At a moment. `figures`: what it rests on, as JSON holds it."""

    at: float
    standing: Standing
    reason: str
    figures: Mapping[str, Any]


class Judge:
    """Of one rollout: `begin_step` at each step, `observe` each scrape. Time is the caller's.

    times: which of TIMES the servers count, or RESPONSE. memory: whether it is known of both.
    shadowed: whether questions are asked of both versions; as `rollout.shadow` says when None.
    """

    KEPT = (
        "_presence",
        "_failures",
        "_alone",
        "_stalls",
        "_stalled",
        "_slower",
        "_pace",
        "_past",
        "_divergence",
        "_growth",
        "_surge",
        "_step",
        "_step_requests",
        "_step_shadowed",
        "_step_failures",
    )
    KEPT_TIMES = ("_step_at",)

    def __init__(
        self,
        rollout: Rollout,
        at: float,
        *,
        times: Collection[str] = TIMES,
        memory: bool = True,
        shadowed: bool | None = None,
    ) -> None:
        tolerated = rollout.tolerated
        self._rollout = rollout
        self._presence = Presence(at, rollout.scrape_timeout_seconds)
        self._failures = Failures()
        self._alone = FailuresAlone()
        self._stalls = Stalls()
        self._stalled = 0  # of stable
        self._slower = {
            name: Slower(tolerated.slowness, tolerated.slow_seconds)
            for name in (*TIMES, RESPONSE)
            if name in times
        }
        self._divergence = Divergence(tolerated.divergence)
        growth = tolerated.memory_growth
        self._growth = Growth(tolerated=growth, least=_LEAST_GROWTH)
        self._surge = Growth(1, tolerated=growth, least=_LEAST_SURGE)
        self._past = Past()
        self._pace = Pace(tolerated.slow_seconds)
        used = {FAILURES, ALONE, STALLS, *self._slower}
        if memory:
            used.add(MEMORY)
        if ITL in self._slower:
            used.add(TOKEN_RATE)
        if shadowed if shadowed is not None else rollout.shadow > 0:
            used.add(DIVERGENCE)
        whole = math.fsum(SHARES[name] for name in used)
        self._weights = {name: share / whole for name, share in SHARES.items() if name in used}
        self._at = at
        self.begin_step(0, at)

    def begin_step(self, index: int, at: float) -> None:
        """The candidate has the users of this step from now on; 0 is the first."""
        self._step, self._step_at, self._at = index, at, at
        self._step_requests = self._step_shadowed = self._step_failures = 0
        self._past.begin()
        if self._settles:
            self._growth.restart()
            self._surge.restart()

    @property
    def step(self) -> int:
        """The one that has begun last."""
        return self._step

    @property
    def step_seconds(self) -> float:
        """How long it has lasted until the last scrape."""
        return self._at - self._step_at

    def observe(self, scrape: Scrape) -> Decision:
        """What follows from this scrape and all before. Raises ValueError when time goes back."""
        if scrape.at < self._at:
            raise ValueError(f"a scrape of {scrape.at} after {self._at}")
        self._at = scrape.at
        candidate, stable = self._presence.see(scrape)
        if candidate is not None:
            self._step_requests += candidate.requests
            self._step_failures += candidate.failures
            self._compare(candidate, stable, share=self._rollout.steps[self._step])
            self._see_stalls(candidate, stable)
            self._see_past(candidate, stable)
        self._weigh(scrape)
        if candidate is not None or scrape.candidate is None:  # else counting begins only now
            self._step_shadowed += len(scrape.answers)
        for answer in scrape.answers:
            self._divergence.update(answer.noise, answer.candidate)
        verdict = self.verdict
        known = candidate is not None and stable is not None
        standing, reason = self._standing(verdict, known=known)
        return Decision(scrape.at, standing, reason, self._figures(verdict))

    @property
    def verdict(self) -> Verdict:
        """The evidence so far."""
        found = {
            FAILURES: self._failures.evidence,
            ALONE: self._alone.evidence,
            STALLS: self._stalls.evidence,
            DIVERGENCE: self._divergence.evidence,
            MEMORY: max(self._growth.evidence, self._surge.evidence) / 2,
            TOKEN_RATE: self._pace.evidence,
            **{name: test.evidence for name, test in self._slower.items()},
        }
        used = {name: found[name] for name in self._weights}
        return combined(used, self._weights, self._rollout.false_rollback_rate, alone=(MEMORY,))

    @property
    def _from_users(self) -> int:
        """Requests of the step but those of the shadow: it asks the candidate one each time."""
        return max(0, self._step_requests - self._step_shadowed)

    @property
    def _warm(self) -> bool:
        first = self._presence.candidate.first_request
        return first is not None and self._at - first >= self._rollout.warm_up_seconds

    @property
    def _settles(self) -> bool:
        """Whether a step is long enough to leave out its beginning: more users need more memory."""
        rollout = self._rollout
        return rollout.hold_seconds >= rollout.warm_up_seconds + self._growth.window

    def _weigh(self, scrape: Scrape) -> None:
        """The candidate's memory; what stable needs, or may need, is no growth that counts."""
        candidate, stable = scrape.candidate, scrape.stable
        if not self._warm or candidate is None or not candidate.memory_bytes:
            return
        if self._settles and self._at - self._step_at < self._rollout.warm_up_seconds:
            return
        theirs = stable.memory_bytes if stable is not None else None
        most = theirs * (1 + self._rollout.tolerated.memory_growth) if theirs else math.inf
        for test in (self._growth, self._surge):
            test.update(candidate.memory_bytes, may_rise=candidate.memory_bytes <= most)

    @property
    def _most_failures(self) -> float:
        """As stable has had, twice, or as the project says."""
        stable = self._presence.stable
        before = _MORE * (stable.failures + 1) / (stable.requests + 2)
        return min(0.5, max(self._rollout.tolerated.failures, before))

    def _compare(self, candidate: Moment, stable: Moment | None, *, share: float) -> None:
        if stable is None or not stable.requests:
            if share == self._rollout.steps[-1]:
                self._alone.update(candidate.failures, candidate.requests, self._most_failures)
            return
        self._failures.update(
            (candidate.failures, candidate.requests), (stable.failures, stable.requests)
        )
        if candidate.requests > stable.requests and not stable.failures:
            # Who fails asks again, at once: the busier the candidate is, the less does its part of
            # the failures tell. Nor may stable's part be small by chance: of few, none failing.
            most = max(self._most_failures, _MORE / (stable.requests + _MORE))
            self._alone.update(candidate.failures, candidate.requests, most)
        comparable = candidate.requests <= _MOST_SHARE * (candidate.requests + stable.requests)
        for name, test in self._slower.items():
            if name not in stable.times:
                continue
            theirs = stable.times[name]
            none = theirs[0], [0] * len(theirs[1])  # before the candidate's first request
            bounds, mine, others = in_shared_buckets(candidate.times.get(name, none), theirs)
            places = places_of(bounds)
            # Tokens of one stream go together.
            alone = (_streams(candidate), _streams(stable)) if name == ITL else None
            if self._warm and comparable:
                test.update(mine, others, places, alone)
            else:
                test.learn(others, places, alone)
        if ITL in stable.times:
            counts = self._warm and comparable and ITL in candidate.times
            self._pace.update(_tokens(candidate) if counts else None, _tokens(stable))

    def _see_past(self, candidate: Moment, stable: Moment | None) -> None:
        """Of first tokens or whole answers; versions with other buckets are not compared."""
        name = next((name for name in (TTFT, RESPONSE) if name in self._slower), None)
        if name is None or name not in candidate.times:
            return
        bounds, counts = candidate.times[name]
        theirs = stable.times.get(name) if stable is not None else None
        places = places_of(bounds)
        others = mean_of(theirs[1], places) if theirs and theirs[0] == bounds else None
        margin = self._slower[name].noticeable(places)
        self._past.update(mean_of(counts, places), others, margin)

    def _see_stalls(self, candidate: Moment, stable: Moment | None) -> None:
        """At any share: that requests stand still is rare of itself."""
        before = _MORE * (self._stalled + 1) / (self._presence.stable.requests + 2)
        most = min(0.5, max(self._rollout.tolerated.stalls, before))
        theirs = stable or Moment(0, 0, {})
        self._stalls.update(_stalling(candidate), _stalling(theirs), most)
        self._stalled += theirs.stalled

    def _standing(self, verdict: Verdict, *, known: bool) -> tuple[Standing, str]:
        worst = max(self._weights, key=lambda name: self._weights[name] * verdict.evidence[name])
        if (trouble := self._presence.trouble) or verdict.rejected:
            return Standing.ROLLBACK, trouble or _WHAT[worst]
        if not known or not self._step_requests:
            what = "no request to the candidate in this step yet" if known else self._presence.lacks
            return Standing.UNKNOWN, what
        if verdict.total >= _SUSPICIOUS * verdict.limit:
            return Standing.HOLD, f"it may be that {_WHAT[worst]}"
        if doubt := self._doubt():
            return Standing.HOLD, doubt
        return self._step_standing()

    def _doubt(self) -> str:
        """Why no step follows, though there is no evidence that counts; empty for nothing."""
        if slow := self._slow_just_now():
            return slow
        if self._step_failures > max(_FEW, self._step_requests * self._most_failures):
            return f"{self._step_failures} requests of the step have failed"
        if self._past.beyond:
            return "its answers begin later than stable's did with as many requests"
        return ""

    def _slow_just_now(self) -> str:
        """What is slow, and since when; empty where nothing is."""
        moments = {name: test.slow_for for name, test in self._slower.items()}
        moments[TOKEN_RATE] = self._pace.slow_for
        name = max(moments, key=lambda name: moments[name])
        if not moments[name]:
            return ""
        return f"{_WHAT[name]}, for {moments[name]} s: a slow phase of its own, or the release"

    def _step_standing(self) -> tuple[Standing, str]:
        rollout = self._rollout
        lasted = self._at - self._step_at
        if lasted < rollout.hold_seconds:
            return Standing.HEALTHY, f"{lasted:.0f} of {rollout.hold_seconds:.0f} s of the step"
        if self._from_users < rollout.minimum_requests:
            wanted = rollout.minimum_requests
            return Standing.HEALTHY, f"{self._from_users} of {wanted} requests of the step"
        return Standing.PROMOTE_STEP, f"{self._from_users} requests in {lasted:.0f} s"

    def _figures(self, verdict: Verdict) -> dict[str, Any]:
        candidate, stable = self._presence.candidate, self._presence.stable
        return {
            "step": self._step,
            "share": self._rollout.steps[self._step],
            "step_seconds": round(self._at - self._step_at, 3),
            "step_requests": self._from_users,
            "candidate": {"requests": candidate.requests, "failures": candidate.failures},
            "stable": {"requests": stable.requests, "failures": stable.failures},
            "evidence": {name: _short(value) for name, value in verdict.evidence.items()},
            "weights": {name: _short(weight) for name, weight in self._weights.items()},
            "total": _short(verdict.total),
            "limit": _short(verdict.limit),
        }


def _stalling(moment: Moment) -> tuple[int, int]:
    """Requests that began to stand still, and all of which something became known."""
    return moment.stalled, moment.requests + moment.stalled


def _tokens(moment: Moment) -> Tokens:
    _, counts = moment.times[ITL]
    return Tokens(sum(counts), moment.token_seconds, _streams(moment))


def _streams(moment: Moment) -> int:
    """Whose times are counted: those of the shadow are not, among the requests they are."""
    _, first_tokens = moment.times.get(TTFT, ((), ()))
    return min(moment.requests, sum(first_tokens)) if first_tokens else moment.requests


def _short(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")

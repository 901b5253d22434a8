# SPDX-License-Identifier: Apache-2.0
"""Judge a candidate against stable every second: continue, hold or roll back, with a reason.

Missing metrics never count as healthy: they hold the step, and after a timeout roll back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tritonctl.project.rollout import Rollout
from tritonctl.rollout.baseline_history import BaselineHistory
from tritonctl.rollout.empty_answers import EmptyAnswers
from tritonctl.rollout.latency_test import LatencyTest, log_midpoints, mean_of, rebucket
from tritonctl.rollout.metrics import Scrape, ScrapeInterval
from tritonctl.rollout.scrape_health import ScrapeHealth
from tritonctl.rollout.sequential import (
    AbsoluteFailureTest,
    CombinedEvidence,
    DivergenceTest,
    FailureTest,
    GrowthTest,
    combine_evidence,
)
from tritonctl.rollout.stalls import StallTest
from tritonctl.rollout.token_rate_test import TokenInterval, TokenRateTest

FAILURES, FAILURES_ALONE, DIVERGENCE, MEMORY = "failures", "failures_alone", "divergence", "memory"
STALLS = "stalls"
TTFT, ITL, TOKEN_RATE = "ttft", "itl", "tokens_per_second"
RESPONSE = "response"  # for tasks without tokens: until the end of the answer, at the gateway
# Each test's share of the false-rollback rate; unused shares go to the remaining tests.
SHARES = {
    FAILURES: 0.36,
    TTFT: 0.32,  # or RESPONSE
    STALLS: 0.13,
    DIVERGENCE: 0.08,
    ITL: 0.04,
    TOKEN_RATE: 0.03,  # if the servers count ITL
    MEMORY: 0.02,
    FAILURES_ALONE: 0.02,
}
SHARES[RESPONSE] = SHARES[TTFT]
TIMES = (TTFT, ITL)
_DESCRIPTIONS = {
    FAILURES: "its requests fail more often than stable's",
    FAILURES_ALONE: "more of its requests fail than is tolerated",
    DIVERGENCE: "its answers differ from stable's, beyond stable's own noise",
    MEMORY: "its memory grows",
    STALLS: "more of its requests stall than stable's",
    TTFT: "its first tokens take longer than stable's",
    RESPONSE: "its answers take longer than stable's",
    ITL: "its tokens are further apart than stable's",
    TOKEN_RATE: "it makes fewer tokens a second than stable",
}
# Above this share of the requests the candidate is the busier version: its times prove nothing.
_MAX_CANDIDATE_SHARE = 0.55
_FAILURE_FACTOR = 2.0  # times stable's earlier failure rate, if stable has no requests now
# Servers with their first users grow steadily by some tens of MB; 60 MB in a minute was measured.
_MIN_GROWTH_BYTES = 50e6  # bytes within half a minute
_MIN_SURGE_BYTES = 40e6  # bytes within a quarter of a minute: too fast to wait longer
_HOLD_FRACTION = 0.1  # of the limit: hold the step while the evidence exceeds it
_NEGLIGIBLE_FAILURES = 2  # of a step


class DecisionStatus(StrEnum):
    """The action that follows from a scrape."""

    INCONCLUSIVE = "unknown"  # too little data: the step continues
    HEALTHY = "healthy"  # the step continues
    HOLD = "hold"  # some evidence against the candidate: the step continues
    PROMOTE_STEP = "promote_step"
    ROLLBACK = "rollback"


@dataclass(frozen=True)
class Decision:
    """The decision at one scrape."""

    at: float  # monotonic seconds
    status: DecisionStatus
    reason: str
    figures: Mapping[str, Any]  # the basis of the decision, JSON values


class Judge:
    """The judge of one rollout: call `begin_step` at each step, `observe` for each scrape.

    times: those of TIMES that the servers count, or RESPONSE. memory: whether both versions report
    it. shadowed: whether the shadower compares answers; None: as `rollout.shadow`.
    """

    PERSISTED = (
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
        "_empty",
    )
    PERSISTED_TIMES = ("_step_at",)

    def __init__(
        self,
        rollout: Rollout,
        at: float,
        *,
        times: Collection[str] = TIMES,
        memory: bool = True,
        shadowed: bool | None = None,
    ) -> None:
        tolerance = rollout.tolerated
        self._rollout = rollout
        self._presence = ScrapeHealth(at, rollout.scrape_timeout_seconds)
        self._failures = FailureTest()
        self._alone = AbsoluteFailureTest()
        self._stalls = StallTest()
        self._stalled = 0  # of stable
        self._slower = {
            name: LatencyTest(tolerance.slowness, tolerance.slow_seconds)
            for name in (*TIMES, RESPONSE)
            if name in times
        }
        self._divergence = DivergenceTest(tolerance.divergence)
        growth = tolerance.memory_growth
        self._growth = GrowthTest(tolerated=growth, min_growth=_MIN_GROWTH_BYTES)
        self._surge = GrowthTest(1, tolerated=growth, min_growth=_MIN_SURGE_BYTES)
        self._past = BaselineHistory()
        self._empty = EmptyAnswers()
        self._pace = TokenRateTest(tolerance.slow_seconds)
        used = {FAILURES, FAILURES_ALONE, STALLS, *self._slower}
        if memory:
            used.add(MEMORY)
        if ITL in self._slower:
            used.add(TOKEN_RATE)
        if shadowed if shadowed is not None else rollout.shadow > 0:
            used.add(DIVERGENCE)
        total = math.fsum(SHARES[name] for name in used)
        self._weights = {name: share / total for name, share in SHARES.items() if name in used}
        self._at = at
        self.begin_step(0, at)

    def begin_step(self, index: int, at: float) -> None:
        """Start a step, from which the candidate has its users; 0 is the first."""
        self._step, self._step_at, self._at = index, at, at
        self._step_requests = self._step_shadowed = self._step_failures = 0
        self._past.start_step()
        if self._skips_warm_up:
            self._growth.restart()
            self._surge.restart()

    @property
    def step(self) -> int:
        """The index of the current step."""
        return self._step

    @property
    def step_seconds(self) -> float:
        """The duration of the step until the last scrape."""
        return self._at - self._step_at

    def observe(self, scrape: Scrape) -> Decision:
        """Decide after this scrape. Raises ValueError if time goes back."""
        if scrape.at < self._at:
            raise ValueError(f"a scrape of {scrape.at} after {self._at}")
        self._at = scrape.at
        candidate, stable = self._presence.record_scrape(scrape)
        if candidate is not None:
            self._step_requests += candidate.requests
            self._step_failures += candidate.failures
            share = self._rollout.steps[self._step]
            self._update_failures_and_times(candidate, stable, share=share)
            self._update_stalls(candidate, stable)
            self._update_history(candidate, stable)
            self._empty.update(candidate, stable, compared=len(scrape.answers))
        self._update_memory(scrape)
        if candidate is not None or scrape.candidate is None:  # otherwise counting only starts now
            self._step_shadowed += len(scrape.answers)
        for answer in scrape.answers:
            self._divergence.update(answer.noise, answer.candidate)
        verdict = self.verdict
        both_known = candidate is not None and stable is not None
        status, reason = self._status(verdict, both_known=both_known)
        return Decision(scrape.at, status, reason, self._figures(verdict))

    @property
    def verdict(self) -> CombinedEvidence:
        """The combined evidence so far."""
        evidence = {
            FAILURES: self._failures.evidence,
            FAILURES_ALONE: self._alone.evidence,
            STALLS: self._stalls.evidence,
            DIVERGENCE: self._divergence.evidence,
            MEMORY: max(self._growth.evidence, self._surge.evidence) / 2,
            TOKEN_RATE: self._pace.evidence,
            **{name: test.evidence for name, test in self._slower.items()},
        }
        used = {name: evidence[name] for name in self._weights}
        return combine_evidence(
            used, self._weights, self._rollout.false_rollback_rate, standalone=(MEMORY,)
        )

    @property
    def _user_requests(self) -> int:
        """Requests of the step without the shadower's, one per comparison."""
        return max(0, self._step_requests - self._step_shadowed)

    @property
    def _is_warm(self) -> bool:
        first = self._presence.candidate.first_request
        return first is not None and self._at - first >= self._rollout.warm_up_seconds

    @property
    def _skips_warm_up(self) -> bool:
        """Whether a step is long enough to skip its start: more users need more memory."""
        rollout = self._rollout
        return rollout.hold_seconds >= rollout.warm_up_seconds + self._growth.window

    def _update_memory(self, scrape: Scrape) -> None:
        """Test the candidate's memory; growth up to stable's tolerated need does not count."""
        candidate, stable = scrape.candidate, scrape.stable
        if not self._is_warm or candidate is None or not candidate.memory_bytes:
            return
        if self._skips_warm_up and self._at - self._step_at < self._rollout.warm_up_seconds:
            return
        stable_bytes = stable.memory_bytes if stable is not None else None
        max_bytes = (
            stable_bytes * (1 + self._rollout.tolerated.memory_growth) if stable_bytes else math.inf
        )
        for test in (self._growth, self._surge):
            test.update(candidate.memory_bytes, may_rise=candidate.memory_bytes <= max_bytes)

    @property
    def _max_failure_rate(self) -> float:
        """Twice stable's failure rate, or the project's tolerance if higher."""
        stable = self._presence.stable
        stable_rate = _FAILURE_FACTOR * (stable.failures + 1) / (stable.requests + 2)
        return min(0.5, max(self._rollout.tolerated.failures, stable_rate))

    def _update_failures_and_times(
        self, candidate: ScrapeInterval, stable: ScrapeInterval | None, *, share: float
    ) -> None:
        if stable is None or not stable.requests:
            if share == self._rollout.steps[-1]:
                self._alone.update(candidate.failures, candidate.requests, self._max_failure_rate)
            return
        self._failures.update(
            (candidate.failures, candidate.requests), (stable.failures, stable.requests)
        )
        if candidate.requests > stable.requests and not stable.failures:
            # Failed clients retry at once, so the busier the candidate is, the less its share of
            # the failures says. Few requests of stable may also have no failure by chance.
            max_rate = max(
                self._max_failure_rate, _FAILURE_FACTOR / (stable.requests + _FAILURE_FACTOR)
            )
            self._alone.update(candidate.failures, candidate.requests, max_rate)
        comparable = candidate.requests <= _MAX_CANDIDATE_SHARE * (
            candidate.requests + stable.requests
        )
        for name, test in self._slower.items():
            if name not in stable.times:
                continue
            stable_times = stable.times[name]
            # The candidate has no times until its first request.
            no_times = stable_times[0], [0] * len(stable_times[1])
            bounds, candidate_counts, stable_counts = rebucket(
                candidate.times.get(name, no_times), stable_times
            )
            places = log_midpoints(bounds)
            # Tokens of one stream are correlated.
            effective_counts = (
                (_timed_requests(candidate), _timed_requests(stable)) if name == ITL else None
            )
            if self._is_warm and comparable:
                test.update(candidate_counts, stable_counts, places, effective_counts)
            else:
                test.learn(stable_counts, places, effective_counts)
        if ITL in stable.times:
            is_usable = self._is_warm and comparable and ITL in candidate.times
            self._pace.update(
                _token_interval(candidate) if is_usable else None, _token_interval(stable)
            )

    def _update_history(self, candidate: ScrapeInterval, stable: ScrapeInterval | None) -> None:
        """Compare first tokens or complete answers with stable's history, if buckets match."""
        name = next((name for name in (TTFT, RESPONSE) if name in self._slower), None)
        if name is None or name not in candidate.times:
            return
        bounds, counts = candidate.times[name]
        stable_times = stable.times.get(name) if stable is not None else None
        places = log_midpoints(bounds)
        stable_mean = (
            mean_of(stable_times[1], places) if stable_times and stable_times[0] == bounds else None
        )
        margin = self._slower[name].min_difference(places)
        self._past.update(mean_of(counts, places), stable_mean, margin)

    def _update_stalls(self, candidate: ScrapeInterval, stable: ScrapeInterval | None) -> None:
        """Test stalls at any share of the candidate: stalls are rare in a healthy version."""
        stable_rate = _FAILURE_FACTOR * (self._stalled + 1) / (self._presence.stable.requests + 2)
        max_rate = min(0.5, max(self._rollout.tolerated.stalls, stable_rate))
        stable_interval = stable or ScrapeInterval(0, 0, {})
        self._stalls.update(candidate.stalled_of_seen, stable_interval.stalled_of_seen, max_rate)
        self._stalled += stable_interval.stalled

    def _status(self, verdict: CombinedEvidence, *, both_known: bool) -> tuple[DecisionStatus, str]:
        worst = max(self._weights, key=lambda name: self._weights[name] * verdict.evidence[name])
        if (fault := self._presence.fault) or verdict.is_rejected:
            return DecisionStatus.ROLLBACK, fault or _DESCRIPTIONS[worst]
        if not both_known:
            return DecisionStatus.INCONCLUSIVE, self._presence.missing_metrics
        if not self._step_requests:
            return DecisionStatus.INCONCLUSIVE, "no request to the candidate in this step yet"
        if verdict.total >= _HOLD_FRACTION * verdict.limit:
            return DecisionStatus.HOLD, f"it may be that {_DESCRIPTIONS[worst]}"
        if doubt := self._hold_reason():
            return DecisionStatus.HOLD, doubt
        return self._step_status()

    def _hold_reason(self) -> str:
        """Why the step is held without significant evidence; empty if it is not."""
        if slow_reason := self._slow_reason():
            return slow_reason
        if self._step_failures > max(
            _NEGLIGIBLE_FAILURES, self._step_requests * self._max_failure_rate
        ):
            return f"{self._step_failures} requests of the step failed"
        if self._past.is_slower:
            return "its answers start later than stable's did at a similar load"
        return self._empty.excess(self._rollout.tolerated.failures)

    def _slow_reason(self) -> str:
        """Which times are slow, and for how long; empty if none are."""
        moments = {name: test.slow_for for name, test in self._slower.items()}
        moments[TOKEN_RATE] = self._pace.slow_for
        name = max(moments, key=lambda name: moments[name])
        if not moments[name]:
            return ""
        return f"{_DESCRIPTIONS[name]}, for {moments[name]} s: a slow spell, or the release"

    def _step_status(self) -> tuple[DecisionStatus, str]:
        rollout = self._rollout
        seconds = self._at - self._step_at
        if seconds < rollout.hold_seconds:
            reason = f"{seconds:.0f} of {rollout.hold_seconds:.0f} s of the step"
            return DecisionStatus.HEALTHY, reason
        if self._user_requests < rollout.minimum_requests:
            reason = f"{self._user_requests} of {rollout.minimum_requests} requests of the step"
            return DecisionStatus.HEALTHY, reason
        return DecisionStatus.PROMOTE_STEP, f"{self._user_requests} requests in {seconds:.0f} s"

    def _figures(self, verdict: CombinedEvidence) -> dict[str, Any]:
        candidate, stable = self._presence.candidate, self._presence.stable
        return {
            "step": self._step,
            "share": self._rollout.steps[self._step],
            "step_seconds": round(self._at - self._step_at, 3),
            "step_requests": self._user_requests,
            "candidate": {"requests": candidate.requests, "failures": candidate.failures},
            "stable": {"requests": stable.requests, "failures": stable.failures},
            "evidence": {name: _four_digits(value) for name, value in verdict.evidence.items()},
            "weights": {name: _four_digits(weight) for name, weight in self._weights.items()},
            "total": _four_digits(verdict.total),
            "limit": _four_digits(verdict.limit),
        }


def _token_interval(moment: ScrapeInterval) -> TokenInterval:
    _, counts = moment.times[ITL]
    return TokenInterval(sum(counts), moment.token_seconds, _timed_requests(moment))


def _timed_requests(moment: ScrapeInterval) -> int:
    """Requests with counted times: the shadower's requests count, their times do not."""
    _, first_tokens = moment.times.get(TTFT, ((), ()))
    return min(moment.requests, sum(first_tokens)) if first_tokens else moment.requests


def _four_digits(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")

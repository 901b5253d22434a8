# SPDX-License-Identifier: Apache-2.0
"""Search the best settings. A pure function of its measurements.

Each measurement takes a minute on a server, so the search needs few of them. It neither walks a
grid nor models the whole space, but races settings against the best so far:

1. bracket and bisect the capacity of the current settings;
2. challenge the best with the favourites of the queueing estimate, then with single-knob moves in
   the order that the server's figures suggest;
3. a challenger runs at the lowest rate that the best so far misses. Most challengers also miss the
   SLO there, after one measurement that ends early. One that meets it climbs from there;
4. reset each changed knob that the result does not need;
5. run the result and the old settings alternately, under unseen arrivals. Without a clear
   difference the advice is to keep the old settings.

`find_capacity` of `loadtest capacity` also doubles and bisects, but measures one server from the
lowest rate up. Here the first rate is a guess that may be too high, so the search goes up or down;
a challenger that won a race starts inside a bracket and climbs in smaller steps; an undecided rate
is measured twice; and the budget may end the search between any two measurements, so it stores the
best so far after each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from tritonctl.tuning.outcome import (
    Move,
    RateBracket,
    SearchBudget,
    SearchKnob,
    SearchOutcome,
    SearchStep,
)
from tritonctl.tuning.trials import Settings, TrialRequest, TuningTrial, pool_shares, settings_key

Measure = Callable[[TrialRequest], TuningTrial]
# Estimates the highest rate of settings; None without an estimate.
Predict = Callable[[Settings], float | None]
Order = Callable[[TuningTrial | None, Sequence[Move]], Sequence[Move]]

_CLIMB = 1.3  # first step up after a won race
_DUELS = 3
_DUEL_REPEAT = 1000  # first repeat number of the duels, with arrivals unseen by the search
_FAVOURITES = 3
# An estimate below this share of the best's excludes settings; a higher one proves nothing.
_HOPELESS_SHARE = 0.6
# A race lost with a smaller share of requests over the limit may be bad luck.
_NEAR_MISS = 0.2
_CLEAR_FACTOR = 4.0  # a share is clear beyond this factor above or below the tolerated one


class BudgetSpentError(Exception):
    """The budget is spent; never leaves this module."""


class SettingsSearch:
    """One search; call `run` once."""

    def __init__(
        self,
        knobs: Sequence[SearchKnob],
        measure: Measure,
        budget: SearchBudget,
        *,
        predict: Predict = lambda _: None,
        order: Order = lambda _, moves: moves,
        allowed: Callable[[Settings], bool] = lambda _: True,
        notify: Callable[[SearchStep], None] = lambda _: None,
    ) -> None:
        self._knobs = {knob.name: knob for knob in knobs}
        self._base: Settings = {knob.name: knob.base for knob in knobs}
        self._run_trial = measure
        self._budget = budget
        self._predict = _memoize(predict)
        self._order = order
        self._is_allowed = allowed
        self._notify = notify
        self._trials: dict[str, TuningTrial] = {}
        self._steps: list[SearchStep] = []
        self._spent = 0.0
        self._round = 0  # each round has different arrivals, so luck does not carry over
        self._tried_keys: set[str] = set()

    def run(self) -> SearchOutcome:
        """Search until no move remains or the budget is spent."""
        baseline = self._best = RateBracket(self._base, 0.0, 0.0)
        complete = False
        # A spent budget ends the search; the outcome then judges the best so far and is marked
        # incomplete.
        with suppress(BudgetSpentError):
            baseline = self._best = self._find_capacity(self._base)
            self._try_favourites()
            self._hill_climb()
            self._remeasure_best()
            self._hill_climb()
            while self._try_pairs():
                self._hill_climb()
            self._simplify()
            complete = True
        baseline = baseline if self._steps or complete else self._best
        return self._build_outcome(baseline, complete=complete)

    # -- measuring ---------------------------------------------------------------------------

    def _measure(
        self, settings: Settings, rate: float, *, requests: int, repeat: int = 0
    ) -> TuningTrial:
        seconds = self._budget.seconds_for(rate, requests)
        request = TrialRequest(dict(settings), _round_rate(rate), seconds, repeat)
        key = request.digest("")
        if key not in self._trials:
            if self._spent + seconds > self._budget.seconds:
                raise BudgetSpentError
            self._trials[key] = trial = self._run_trial(request)
            self._spent += trial.took_seconds
        return self._trials[key]

    def _race(self, settings: Settings, rate: float) -> tuple[bool, TuningTrial]:
        """Return whether settings meet the SLO at a rate; repeat an undecided measurement once."""
        first_repeat = 2 * self._round
        trial = self._measure(settings, rate, requests=self._budget.race, repeat=first_repeat)
        if trial.verdict != "undecided" or _is_clear(trial):
            return trial.leans_met, trial
        second = self._measure(settings, rate, requests=self._budget.race, repeat=first_repeat + 1)
        share, tolerated = pool_shares([trial, second])
        return share <= tolerated, trial

    def _find_capacity(self, settings: Settings) -> RateBracket:
        rate = self._budget.start
        met, trial = self._race(settings, rate)
        bracket = RateBracket(settings, 0.0, rate, trial)
        if met:
            self._best = replace(bracket, met=rate, missed=rate)
            return self._climb(self._best, 2.0)
        self._best = bracket
        while rate > self._budget.lowest:
            rate = max(self._budget.lowest, rate / 2)
            met, trial = self._race(settings, rate)
            if met:
                return self._bisect(replace(bracket, met=rate, trial=trial))
            bracket = replace(bracket, missed=rate, trial=trial)
            self._best = bracket
        return bracket

    def _climb(self, bracket: RateBracket, factor: float) -> RateBracket:
        """Climb from a met rate to a missed one, then bisect."""
        rate = bracket.met
        while rate < self._budget.highest:
            rate *= factor
            met, trial = self._race(bracket.settings, rate)
            if not met:
                return self._bisect(replace(bracket, missed=rate))
            bracket = self._best = replace(bracket, met=rate, missed=rate, trial=trial)
        return bracket

    def _bisect(self, bracket: RateBracket) -> RateBracket:
        self._best = bracket
        while bracket.missed / bracket.met > 1 + self._budget.precision:
            rate = (bracket.met * bracket.missed) ** 0.5
            met, trial = self._race(bracket.settings, rate)
            if met:
                bracket = replace(bracket, met=rate, trial=trial)
            else:
                bracket = replace(bracket, missed=rate)
            self._best = bracket
        return bracket

    # -- searching ---------------------------------------------------------------------------

    def _challenge(self, settings: Settings, knob: str | None) -> bool:
        """Race settings against the best so far; a winner replaces it."""
        self._tried_keys.add(settings_key(settings))
        champion = self._best
        won, trial = self._race(settings, champion.missed)
        self._record_step(
            SearchStep(knob, settings, _round_rate(champion.missed), won, trial, champion.trial)
        )
        if won:
            self._best = RateBracket(settings, champion.missed, champion.missed, trial)
            self._best = self._climb(self._best, _CLIMB)
        return won

    def _try_favourites(self) -> None:
        """Try the settings with the best estimates in the whole space."""
        current = self._predict(self._best.settings)
        if current is None:
            return

        def rank(pair: tuple[float, Settings]) -> tuple[float, int]:
            """Sort by estimate, equal ones by the number of changes."""
            return -float(f"{pair[0]:.3g}"), sum(self._base[n] != v for n, v in pair[1].items())

        ranked = sorted(((self._predict(s) or 0.0, s) for s in self._combinations()), key=rank)
        for predicted, settings in ranked[:_FAVOURITES]:
            if predicted > current * (1 + self._budget.precision) and self._is_untried(settings):
                self._challenge(settings, None)

    def _hill_climb(self) -> None:
        self._tried_keys.add(settings_key(self._best.settings))
        while any(
            self._challenge(move.settings, move.knob)
            for move in self._order(self._best.trial, self._single_moves())
        ):
            pass

    def _remeasure_best(self) -> None:
        """Measure the best settings again, to drop lucky winners and retry near misses."""
        best = self._best
        self._round += 1
        if not best.met:
            return
        met, trial = self._race(best.settings, best.met)
        if met:
            return
        missed, rate = best.met, best.met
        while not met and rate > self._budget.lowest:
            missed, rate = rate, max(self._budget.lowest, rate / _CLIMB)
            met, trial = self._race(best.settings, rate)
        self._best = RateBracket(best.settings, rate if met else 0.0, missed, trial)
        if met:
            self._best = self._bisect(self._best)
        near_misses = {
            settings_key(s.settings) for s in self._steps if s.trial.share_over < _NEAR_MISS
        }
        self._tried_keys -= near_misses

    def _single_moves(self) -> list[Move]:
        """Return the untried single-knob moves that the estimate does not exclude."""
        return self._promising_moves(
            move
            for name in self._knobs
            for move in self._neighbour_moves(name, self._best.settings)
        )

    def _promising_moves(self, moves: Iterable[Move]) -> list[Move]:
        current = self._predict(self._best.settings)
        return [
            move
            for move in moves
            if self._is_untried(move.settings) and not self._is_hopeless(move.settings, current)
        ]

    def _neighbour_moves(self, name: str, settings: Settings) -> Iterator[Move]:
        values = list(self._knobs[name].values)
        position = values.index(settings[name])
        for index in (position + 1, position - 1):
            if 0 <= index < len(values):
                turned = {**settings, name: values[index]}
                yield Move(name, values[index], index > position, turned)

    def _try_pairs(self) -> bool:
        """Change two knobs at once, such as fewer instances with larger batches."""
        best = self._best.settings
        moves = self._promising_moves(
            second
            for first_knob, second_knob in itertools.combinations(self._knobs, 2)
            for first in self._neighbour_moves(first_knob, best)
            for second in self._neighbour_moves(second_knob, first.settings)
        )
        return any(self._challenge(move.settings, move.knob) for move in moves)

    def _is_untried(self, settings: Settings) -> bool:
        return self._is_allowed(settings) and settings_key(settings) not in self._tried_keys

    def _is_hopeless(self, settings: Settings, current: float | None) -> bool:
        estimate = self._predict(settings)
        return current is not None and estimate is not None and estimate < current * _HOPELESS_SHARE

    def _combinations(self) -> Iterator[Settings]:
        """Yield the allowed combinations of the knobs that affect the estimate."""
        base_estimate = self._predict(self._base)
        values = [
            [(name, v) for v in knob.values]
            for name, knob in self._knobs.items()
            if any(
                self._predict({**self._base, name: v}) not in (base_estimate, None)
                for v in knob.values
            )
        ]
        combinations = ({**self._base, **dict(chosen)} for chosen in itertools.product(*values))
        return (settings for settings in combinations if self._is_allowed(settings))

    def _simplify(self) -> None:
        """Reset each changed knob if the settings still meet the rate without it."""
        for name, knob in self._knobs.items():
            best = self._best
            settings = {**best.settings, name: knob.base}
            if best.settings[name] == knob.base or not self._is_allowed(settings):
                continue
            met, trial = self._race(settings, best.met)
            self._record_step(
                SearchStep(name, settings, _round_rate(best.met), met, trial, best.trial)
            )
            if met:
                self._best = replace(best, settings=settings, trial=trial)

    def _record_step(self, step: SearchStep) -> None:
        self._steps.append(step)
        self._notify(step)

    # -- judging -----------------------------------------------------------------------------

    def _build_outcome(self, baseline: RateBracket, *, complete: bool) -> SearchOutcome:
        best, duels = self._best, list[tuple[TuningTrial, TuningTrial]]()
        better, reason = False, "no tried settings meet the SLO at a higher rate"
        if complete and not self._steps:
            reason = "no other settings were tried: the estimate predicts no higher rate for them"
        if not best.met:
            reason = "the budget ended before the search found a rate that meets the SLO"
            if 0 < best.missed <= self._budget.lowest:
                reason = f"no settings meet the SLO, not even at {self._budget.lowest:g} requests/s"
        elif best.met > baseline.missed * (1 + self._budget.precision) or not baseline.met:
            better, reason = self._duel(best, baseline, duels)
        return SearchOutcome(
            baseline,
            best,
            better,
            reason,
            tuple(self._steps),
            tuple(duels),
            tuple(self._trials.values()),
            complete,
        )

    def _duel(
        self, best: RateBracket, baseline: RateBracket, duels: list[tuple[TuningTrial, TuningTrial]]
    ) -> tuple[bool, str]:
        """Run new and old settings alternately, between the old missed and the new met rate."""
        rate = (best.met * baseline.missed) ** 0.5 if baseline.met else best.met / _CLIMB
        self._spent = -math.inf  # the result needs the duels, even if the budget is spent
        is_better = True
        for turn in range(_DUELS):
            pair = (best.settings, baseline.settings)
            pair_trials = [
                self._measure(s, rate, requests=self._budget.duel, repeat=_DUEL_REPEAT + turn)
                for s in (pair if turn % 2 == 0 else pair[::-1])
            ]
            duels.append(
                (pair_trials[0], pair_trials[1])
                if turn % 2 == 0
                else (pair_trials[1], pair_trials[0])
            )
            is_better = duels[-1][0].leans_met and not duels[-1][1].leans_met
            if not is_better:
                break
        new, old = (pool_shares([duel[side] for duel in duels])[0] for side in (0, 1))
        shares = f"{new:.2%} of the requests over the SLO with the new settings, {old:.2%} with the"
        # Each side needs one decided trial.
        met = any(duel[0].verdict == "met" for duel in duels)
        if is_better and met and any(duel[1].verdict == "missed" for duel in duels):
            return True, f"side by side at {rate:.3g} requests/s: {shares} old ones"
        return False, (
            f"side by side at {rate:.3g} requests/s the difference is within the noise: {shares} "
            "old ones"
        )


def _is_clear(trial: TuningTrial) -> bool:
    """Whether a trial is so far from the tolerated share that repeating it is useless."""
    return (
        not 1 / _CLEAR_FACTOR <= trial.share_over / trial.tolerated <= _CLEAR_FACTOR
        if trial.tolerated
        else True
    )


def _memoize(predict: Predict) -> Predict:
    estimates: dict[str, float | None] = {}

    def memoized(settings: Settings) -> float | None:
        key = settings_key(settings)
        if key not in estimates:
            estimates[key] = predict(settings)
        return estimates[key]

    return memoized


def _round_rate(rate: float) -> float:
    """Round to four significant digits, as in reports; a trial is less precise."""
    return float(f"{rate:.4g}")

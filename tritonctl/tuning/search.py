# SPDX-License-Identifier: Apache-2.0
"""The search: which settings to try, and when to stop. A pure function of its measurements.

It needs few measurements, for each takes a minute on a server. So it neither walks a grid nor
models the whole space, but races settings against the best so far:

1. capacity of the settings as they are: bracketed, then bisected;
2. the favourites of the queueing estimate challenge the best, then single moves of one knob, in
   the order that the server's own figures suggest;
3. a challenger runs at the lowest rate that the best so far misses. Most miss the SLO there, too,
   after one measurement that ends early. One that meets it climbs from there;
4. a changed knob that the result does not need goes back to its old value;
5. the result and the old settings run side by side, alternately, under arrivals that neither has
   seen. Without a clear difference the advice is to keep the old settings.

The bracketing here is not `find_capacity` of `loadtest capacity`, though both double and bisect.
That one measures one server from the lowest rate up. Here the first rate is a guess that may be too
high, so the search goes down as well as up; a challenger that won a race starts inside a bracket
and climbs in smaller steps; an undecided rate is measured twice; and the budget of the whole search
may end it between any two measurements, so the best so far is kept after each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from tritonctl.tuning.outcome import Budget, Knob, Move, Outcome, Standing, Step
from tritonctl.tuning.trials import Asked, Settings, Trial, key_of, pooled

Measure = Callable[[Asked], Trial]
# Estimated highest rate of settings; None without an estimate.
Predict = Callable[[Settings], float | None]
Order = Callable[[Trial | None, Sequence[Move]], Sequence[Move]]

_CLIMB = 1.3  # first step up after a race that was won
_DUELS = 3
_FRESH = 1000  # repeats from here on: arrivals that the search has not seen
_FAVOURITES = 3
# An estimate below this share of the best's rules settings out; a higher one proves nothing.
_HOPELESS = 0.6
# A race lost with at most this share of requests over the limit may have been bad luck.
_NEAR_MISS = 0.2
_FAR = 4.0  # times what is tolerated, or a fraction of it


class BudgetSpentError(Exception):
    """Ends a phase; never leaves this module."""


class Search:
    """One search; `run` once."""

    def __init__(
        self,
        knobs: Sequence[Knob],
        measure: Measure,
        budget: Budget,
        *,
        predict: Predict = lambda _: None,
        order: Order = lambda _, moves: moves,
        allowed: Callable[[Settings], bool] = lambda _: True,
        notify: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self._knobs = {knob.name: knob for knob in knobs}
        self._base: Settings = {knob.name: knob.base for knob in knobs}
        self._ask = measure
        self._budget = budget
        self._predict = _memoized(predict)
        self._order = order
        self._allowed = allowed
        self._notify = notify
        self._trials: dict[str, Trial] = {}
        self._steps: list[Step] = []
        self._spent = 0.0
        self._round = 0  # each round has its own arrivals, so luck does not carry over
        self._tried: set[str] = set()

    def run(self) -> Outcome:
        """Search until nothing is left to try or the budget is spent."""
        before = self._best = Standing(self._base, 0.0, 0.0)
        complete = False
        # A spent budget ends the search: the best so far is still judged, and the outcome says that
        # it is not complete.
        with suppress(BudgetSpentError):
            before = self._best = self._capacity(self._base)
            self._favourites()
            self._walk()
            self._confirm()
            self._walk()
            while self._pairs():
                self._walk()
            self._simplify()
            complete = True
        before = before if self._steps or complete else self._best
        return self._judged(before, complete=complete)

    # -- measuring ---------------------------------------------------------------------------

    def _measure(self, settings: Settings, rate: float, *, requests: int, repeat: int = 0) -> Trial:
        seconds = self._budget.seconds_for(rate, requests)
        asked = Asked(dict(settings), _rounded(rate), seconds, repeat)
        key = asked.digest("")
        if key not in self._trials:
            if self._spent + seconds > self._budget.seconds:
                raise BudgetSpentError
            self._trials[key] = trial = self._ask(asked)
            self._spent += trial.took_seconds
        return self._trials[key]

    def _race(self, settings: Settings, rate: float) -> tuple[bool, Trial]:
        """Whether settings meet the SLO at a rate; measured again while that is undecided."""
        first = 2 * self._round
        trial = self._measure(settings, rate, requests=self._budget.race, repeat=first)
        if trial.verdict != "undecided" or _clear(trial):
            return trial.leans_met, trial
        again = self._measure(settings, rate, requests=self._budget.race, repeat=first + 1)
        share, tolerated = pooled([trial, again])
        return share <= tolerated, trial

    def _capacity(self, settings: Settings) -> Standing:
        rate = self._budget.start
        met, trial = self._race(settings, rate)
        standing = Standing(settings, 0.0, rate, trial)
        if met:
            self._best = replace(standing, met=rate, missed=rate)
            return self._climb(self._best, 2.0)
        self._best = standing
        while rate > self._budget.lowest:
            rate = max(self._budget.lowest, rate / 2)
            met, trial = self._race(settings, rate)
            if met:
                return self._bisect(replace(standing, met=rate, trial=trial))
            standing = replace(standing, missed=rate, trial=trial)
            self._best = standing
        return standing

    def _climb(self, standing: Standing, factor: float) -> Standing:
        """Go from a met rate up to a missed one, then bisect."""
        rate = standing.met
        while rate < self._budget.highest:
            rate *= factor
            met, trial = self._race(standing.settings, rate)
            if not met:
                return self._bisect(replace(standing, missed=rate))
            standing = self._best = replace(standing, met=rate, missed=rate, trial=trial)
        return standing

    def _bisect(self, standing: Standing) -> Standing:
        self._best = standing
        while standing.missed / standing.met > 1 + self._budget.precision:
            rate = (standing.met * standing.missed) ** 0.5
            met, trial = self._race(standing.settings, rate)
            if met:
                standing = replace(standing, met=rate, trial=trial)
            else:
                standing = replace(standing, missed=rate)
            self._best = standing
        return standing

    # -- searching ---------------------------------------------------------------------------

    def _challenge(self, settings: Settings, knob: str | None) -> bool:
        """Whether these settings beat the best so far; then they replace it."""
        self._tried.add(key_of(settings))
        champion = self._best
        won, trial = self._race(settings, champion.missed)
        self._note(Step(knob, settings, _rounded(champion.missed), won, trial, champion.trial))
        if won:
            self._best = Standing(settings, champion.missed, champion.missed, trial)
            self._best = self._climb(self._best, _CLIMB)
        return won

    def _favourites(self) -> None:
        """Try the settings with the best estimates of the whole space."""
        current = self._predict(self._best.settings)
        if current is None:
            return

        def rank(pair: tuple[float, Settings]) -> tuple[float, int]:
            """By estimate; of equal ones the settings first that change least."""
            return -float(f"{pair[0]:.3g}"), sum(self._base[n] != v for n, v in pair[1].items())

        ranked = sorted(((self._predict(s) or 0.0, s) for s in self._combinations()), key=rank)
        for predicted, settings in ranked[:_FAVOURITES]:
            if predicted > current * (1 + self._budget.precision) and self._untried(settings):
                self._challenge(settings, None)

    def _walk(self) -> None:
        self._tried.add(key_of(self._best.settings))
        while any(
            self._challenge(move.settings, move.knob)
            for move in self._order(self._best.trial, self._moves())
        ):
            pass

    def _confirm(self) -> None:
        """Measure the best settings again: a lucky winner drops, and near losers get a chance."""
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
        self._best = Standing(best.settings, rate if met else 0.0, missed, trial)
        if met:
            self._best = self._bisect(self._best)
        near = {key_of(s.settings) for s in self._steps if s.trial.share_over < _NEAR_MISS}
        self._tried -= near

    def _moves(self) -> list[Move]:
        """Every untried turn of one knob that the estimate does not rule out."""
        return self._worthwhile(
            move for name in self._knobs for move in self._turns(name, self._best.settings)
        )

    def _worthwhile(self, moves: Iterable[Move]) -> list[Move]:
        current = self._predict(self._best.settings)
        return [
            move
            for move in moves
            if self._untried(move.settings) and not self._hopeless(move.settings, current)
        ]

    def _turns(self, name: str, settings: Settings) -> Iterator[Move]:
        values = list(self._knobs[name].values)
        at = values.index(settings[name])
        for index in (at + 1, at - 1):
            if 0 <= index < len(values):
                turned = {**settings, name: values[index]}
                yield Move(name, values[index], index > at, turned)

    def _pairs(self) -> bool:
        """Turn two knobs at once where neither alone helped: fewer instances, larger batches."""
        best = self._best.settings
        moves = self._worthwhile(
            second
            for left, right in itertools.combinations(self._knobs, 2)
            for first in self._turns(left, best)
            for second in self._turns(right, first.settings)
        )
        return any(self._challenge(move.settings, move.knob) for move in moves)

    def _untried(self, settings: Settings) -> bool:
        return self._allowed(settings) and key_of(settings) not in self._tried

    def _hopeless(self, settings: Settings, current: float | None) -> bool:
        estimate = self._predict(settings)
        return current is not None and estimate is not None and estimate < current * _HOPELESS

    def _combinations(self) -> Iterator[Settings]:
        """Every combination of the knobs on which the estimate depends."""
        at = self._predict(self._base)
        values = [
            [(name, v) for v in knob.values]
            for name, knob in self._knobs.items()
            if any(self._predict({**self._base, name: v}) not in (at, None) for v in knob.values)
        ]
        combinations = ({**self._base, **dict(chosen)} for chosen in itertools.product(*values))
        return (settings for settings in combinations if self._allowed(settings))

    def _simplify(self) -> None:
        """Turn changed knobs back, one by one, where the rate is met without the change, too."""
        for name, knob in self._knobs.items():
            best = self._best
            settings = {**best.settings, name: knob.base}
            if best.settings[name] == knob.base or not self._allowed(settings):
                continue
            met, trial = self._race(settings, best.met)
            self._note(Step(name, settings, _rounded(best.met), met, trial, best.trial))
            if met:
                self._best = replace(best, settings=settings, trial=trial)

    def _note(self, step: Step) -> None:
        self._steps.append(step)
        self._notify(step)

    # -- judging -----------------------------------------------------------------------------

    def _judged(self, before: Standing, *, complete: bool) -> Outcome:
        best, duels = self._best, list[tuple[Trial, Trial]]()
        better, why = False, "nothing that was tried meets the SLO at a higher rate"
        if complete and not self._steps:
            why = (
                "nothing else was tried, for the estimate promises no higher rate of other settings"
            )
        if not best.met:
            why = "the budget ended before a rate was found that meets the SLO"
            if 0 < best.missed <= self._budget.lowest:
                why = f"no settings meet the SLO, not even at {self._budget.lowest:g} requests/s"
        elif best.met > before.missed * (1 + self._budget.precision) or not before.met:
            better, why = self._duel(best, before, duels)
        return Outcome(
            before,
            best,
            better,
            why,
            tuple(self._steps),
            tuple(duels),
            tuple(self._trials.values()),
            complete,
        )

    def _duel(
        self, best: Standing, before: Standing, duels: list[tuple[Trial, Trial]]
    ) -> tuple[bool, str]:
        """Run new and old alternately, between the rate the old missed and the one the new met."""
        rate = (best.met * before.missed) ** 0.5 if before.met else best.met / _CLIMB
        self._spent = -math.inf  # a spent budget does not stop this: the result needs it
        agreed = True
        for turn in range(_DUELS):
            pair = (best.settings, before.settings)
            ran = [
                self._measure(s, rate, requests=self._budget.duel, repeat=_FRESH + turn)
                for s in (pair if turn % 2 == 0 else pair[::-1])
            ]
            duels.append((ran[0], ran[1]) if turn % 2 == 0 else (ran[1], ran[0]))
            agreed = duels[-1][0].leans_met and not duels[-1][1].leans_met
            if not agreed:
                break
        new, old = (pooled([duel[side] for duel in duels])[0] for side in (0, 1))
        shares = f"{new:.2%} of the requests over the SLO with the new settings, {old:.2%} with the"
        # Each side needs a trial whose interval leaves no doubt.
        met = any(duel[0].verdict == "met" for duel in duels)
        if agreed and met and any(duel[1].verdict == "missed" for duel in duels):
            return True, f"side by side at {rate:.3g} requests/s: {shares} old ones"
        return False, (
            f"side by side at {rate:.3g} requests/s the difference is within the noise: {shares} "
            "old ones"
        )


def _clear(trial: Trial) -> bool:
    """Whether a trial is so far from the tolerated share that a second one would be wasted."""
    return not 1 / _FAR <= trial.share_over / trial.tolerated <= _FAR if trial.tolerated else True


def _memoized(predict: Predict) -> Predict:
    estimates: dict[str, float | None] = {}

    def memoized(settings: Settings) -> float | None:
        key = key_of(settings)
        if key not in estimates:
            estimates[key] = predict(settings)
        return estimates[key]

    return memoized


def _rounded(rate: float) -> float:
    """Four digits, as reports show them; a trial is less exact."""
    return float(f"{rate:.4g}")

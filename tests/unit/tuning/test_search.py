# SPDX-License-Identifier: Apache-2.0
"""The search against simulated servers whose best settings are known exactly."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.tuning.simulated import Knob, Laboratory, Machine, swept, true_capacity
from tritonctl.tuning.outcome import SearchBudget, SearchOutcome
from tritonctl.tuning.queueing import BatchServer, capacity, fit_curve
from tritonctl.tuning.search import Predict, SettingsSearch
from tritonctl.tuning.trials import Settings, TrialRequest, TrialStore, TuningTrial

KNOBS = (
    Knob("instances", (1, 2, 4, 6), 1),
    Knob("max_batch", (1, 4, 8, 16, 32), 4),
    Knob("delay_us", (0, 2000, 10_000), 0),
)
# Cheap batches on four cores; batches that hardly pay on two; dear ones that pay a lot.
MACHINES = {
    "cheap": Machine(),
    "two cores": Machine(fixed=0.002, each=0.004, cores=2, limit=0.1),
    "dear": Machine(fixed=0.02, each=0.0005, cores=8, limit=0.08),
}
SEEDS = 6
# 1,500 requests tell a P99 well enough to compare settings, even with a drift of 2 % on top.
BUDGET = SearchBudget(seconds=1e9, start=50.0, race=1500, shortest=0.5)
DRIFT = 0.02


def grid() -> list[Settings]:
    """Every combination."""
    names = [knob.name for knob in KNOBS]
    values = itertools.product(*(knob.values for knob in KNOBS))
    return [dict(zip(names, row, strict=True)) for row in values]


@pytest.fixture(
    scope="module",
    params=[
        "cheap",
        pytest.param("two cores", marks=pytest.mark.exhaustive),
        pytest.param("dear", marks=pytest.mark.exhaustive),
    ],
)
def machine(request: pytest.FixtureRequest) -> Machine:
    """One of them."""
    return MACHINES[request.param]


@pytest.fixture(scope="module")
def truth(machine: Machine) -> Mapping[str, float]:
    """The capacity of every combination, without noise."""
    return {name_of(s): true_capacity(machine, s, count=2000, precision=0.04) for s in grid()}


@pytest.fixture(scope="module")
def whole_sweep(machine: Machine) -> int:
    """How many trials it takes to measure every combination, with noise."""
    laboratory = Laboratory(machine, seed=100, drift=DRIFT)
    swept(laboratory, grid(), BUDGET.start, requests=BUDGET.race)
    return len(laboratory.measured)


def name_of(settings: Settings) -> str:
    return repr(sorted(settings.items()))


def search(laboratory: Laboratory, predict: Predict = lambda _: None) -> SearchOutcome:
    return SettingsSearch(KNOBS, laboratory, BUDGET, predict=predict).run()


def estimate(machine: Machine) -> Predict:
    """What a micro-benchmark of one instance and queueing theory say."""
    alone: Settings = {"instances": 1}
    curve = fit_curve([(b, machine.service(b, alone)) for b in (1, 2, 4, 8)])
    assert curve is not None

    def predict(settings: Settings) -> float:
        server = BatchServer(
            curve,
            instances=int(settings["instances"]),
            max_batch=int(settings["max_batch"]),
            delay=int(settings["delay_us"]) / 1e6,
            cores=machine.cores,
        )
        return capacity(server, machine.limit)

    return predict


@pytest.mark.parametrize("informed", [False, True], ids=["blind", "with the estimate"])
def test_it_finds_the_best_with_a_fraction_of_a_sweep(
    machine: Machine, truth: Mapping[str, float], whole_sweep: int, informed: bool
) -> None:
    """Over many seeds, with noise: at least 95 % of the best, with at most 25 % of the trials."""
    shares, costs = [], []
    for seed in range(SEEDS):
        laboratory = Laboratory(machine, seed, DRIFT)
        outcome = search(laboratory, estimate(machine) if informed else lambda _: None)
        assert outcome.better
        assert outcome.complete
        shares.append(truth[name_of(outcome.best.settings)] / max(truth.values()))
        costs.append(len(laboratory.measured) / whole_sweep)
    assert max(costs) <= 0.25
    assert statistics.mean(shares) >= 0.95
    assert sum(share >= 0.95 for share in shares) >= 0.6 * SEEDS
    assert min(shares) >= 0.85


def test_the_estimate_saves_trials() -> None:
    """It prunes what cannot work and names the favourites."""
    machine = MACHINES["dear"]
    blind, informed = Laboratory(machine), Laboratory(machine)
    search(blind)
    search(informed, estimate(machine))
    assert len(informed.measured) < len(blind.measured)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 12))]
)
def test_keep_what_you_have(seed: int) -> None:
    """Nothing helps: knobs without an effect are never recommended."""
    useless = [Knob("delay_us", (0, 1, 2), 1), Knob("idle", (1, 2, 3), 2)]
    fixed = {"instances": 1, "max_batch": 1}

    def measure(asked: TrialRequest) -> TuningTrial:
        return laboratory(TrialRequest({**fixed, **asked.settings}, asked.rate, asked.seconds))

    laboratory = Laboratory(Machine(), seed, DRIFT)
    outcome = SettingsSearch(useless, measure, BUDGET).run()
    assert not outcome.better
    assert outcome.best.met == pytest.approx(true_capacity(Machine(), fixed), rel=0.25)


def test_a_change_that_is_not_needed_goes_back() -> None:
    """A knob that came along with a winner, without an effect of its own, stays as it was."""
    machine = MACHINES["cheap"]
    favourite: Settings = {"instances": 4, "max_batch": 16, "delay_us": 2000}

    def predict(settings: Settings) -> float:
        return 1000.0 if settings == favourite else 900.0

    outcome = search(Laboratory(machine), predict)
    assert outcome.best.settings["instances"] == 4
    assert outcome.best.settings["delay_us"] == 0
    clear = [step for step in outcome.steps if step.trial.verdict != "undecided"]
    assert [step for step in clear if step.won != (step.trial.verdict == "met")] == []
    assert any(step.won and step.settings["delay_us"] == 0 for step in outcome.steps)


def test_no_settings_meet_the_slo() -> None:
    """An impossible SLO ends the search with a plain answer, not with an endless one."""
    outcome = search(Laboratory(Machine(limit=0.001)))
    assert not outcome.better
    assert outcome.best.met == 0
    assert "no settings meet the SLO" in outcome.reason


def test_rescue_from_an_slo_that_is_missed_today() -> None:
    """Today's settings miss it at any rate, others do not."""
    knobs = [Knob("threads", (1, 2, 4), 1)]
    machine = Machine(fixed=0.04, each=0.0001, limit=0.03, serial=0.1)
    fixed = {"instances": 1, "max_batch": 4}
    laboratory = Laboratory(machine)

    def measure(asked: TrialRequest) -> TuningTrial:
        return laboratory(TrialRequest({**fixed, **asked.settings}, asked.rate, asked.seconds))

    outcome = SettingsSearch(knobs, measure, BUDGET).run()
    assert outcome.baseline.met == 0
    assert outcome.best.settings["threads"] == 4
    assert outcome.better


def test_the_budget_is_kept() -> None:
    """Measurements end with the budget; only the last, side by side, goes beyond it."""
    laboratory = Laboratory(Machine())
    seconds = 12.0
    budget = SearchBudget(seconds=seconds, start=50.0, shortest=0.5)
    outcome = SettingsSearch(KNOBS, laboratory, budget).run()
    assert not outcome.complete
    searched = [asked for asked in laboratory.measured if asked.repeat < 1000]
    assert sum(asked.seconds for asked in searched) <= seconds
    assert outcome.best.met > 0


@pytest.mark.parametrize(("trials", "lowest_tried"), [(0, 0.0), (1, 50.0), (2, 25.0), (3, 12.5)])
def test_a_budget_that_ends_before_any_rate_was_met(trials: int, lowest_tried: float) -> None:
    """No rate is called missed that nobody has measured."""
    laboratory = Laboratory(Machine(limit=0.001))
    budget = SearchBudget(seconds=30.0 * trials + 1, start=50.0, shortest=30.0, longest=30.0)
    outcome = SettingsSearch(KNOBS, laboratory, budget).run()
    assert [asked.rate for asked in laboratory.measured] == [50.0, 25.0, 12.5][:trials]
    assert (outcome.baseline.met, outcome.baseline.missed) == (0, lowest_tried)
    assert outcome.reason == "the budget ended before the search found a rate that meets the SLO"
    assert not outcome.complete


def test_equal_measurements_equal_search() -> None:
    """What makes a search resumable: asked again, it asks the same in the same order."""
    first, second = Laboratory(Machine(), 3, DRIFT), Laboratory(Machine(), 3, DRIFT)
    search(first)
    search(second)
    assert first.measured == second.measured


def test_settings_that_are_not_allowed_are_not_tried() -> None:
    """Combinations that the model cannot be loaded with."""
    laboratory = Laboratory(Machine())

    def allowed(settings: Settings) -> bool:
        return int(settings["instances"]) * int(settings["max_batch"]) <= 32

    outcome = SettingsSearch(KNOBS, laboratory, BUDGET, allowed=allowed).run()
    assert all(allowed(asked.settings) for asked in laboratory.measured)
    assert outcome.better


def test_every_step_is_told() -> None:
    """For the live table, and for the explanation afterwards."""
    told: list[Sequence[object]] = []
    outcome = SettingsSearch(
        KNOBS, Laboratory(Machine()), BUDGET, notify=lambda step: told.append([step])
    ).run()
    assert len(told) == len(outcome.steps) > 3


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    """With the stored trials it walks the same way, and measures only what is missing."""
    whole = Laboratory(Machine(), 5)
    expected = search(whole)

    class KilledError(Exception):
        """What SIGKILL would be."""

    laboratory = Laboratory(Machine(), 5)
    store = TrialStore(tmp_path, "context")

    def measure(asked: TrialRequest) -> TuningTrial:
        if trial := store.find(asked):
            return trial
        if len(laboratory.measured) == kills[0]:
            raise KilledError
        store.save(trial := laboratory(asked))
        return trial

    kills = [7, 15, 1000]
    while kills:
        with suppress(KilledError):
            outcome = SettingsSearch(KNOBS, measure, BUDGET).run()
        kills.pop(0)
    assert laboratory.measured == whole.measured
    assert outcome == expected
    took = sum(trial.took_seconds for trial in expected.trials)
    assert store.seconds_spent() == pytest.approx(took)

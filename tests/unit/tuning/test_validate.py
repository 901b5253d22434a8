# SPDX-License-Identifier: Apache-2.0
"""The winner on a fresh server: a rate that does not hold is lowered, not promised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit.tuning.simulated import Laboratory, Machine, true_capacity
from tritonctl.project.schema import Project
from tritonctl.tuning.outcome import RateBracket, SearchBudget, SearchOutcome
from tritonctl.tuning.report import conclusion_sentences, to_record
from tritonctl.tuning.session import TuningSession
from tritonctl.tuning.space import SearchSpace
from tritonctl.tuning.trials import Settings, TrialRequest, TuningTrial
from tritonctl.tuning.tuner import TuningResult
from tritonctl.tuning.validate import FACTORS, Validation, validate

SETTINGS: Settings = {"instances": 2, "max_batch": 8, "delay_us": 0}
PROJECT = Project.at(
    Path(),
    {
        "schema": "tritonctl/v1",
        "models": {
            "m": {"checkpoint": "c", "engine": {"builder": "onnxruntime", "precision": "fp32"}}
        },
    },
)
BUDGET = SearchBudget(seconds=1.0, start=1.0, shortest=0.5)


def standing(share_of_capacity: float) -> RateBracket:
    rate = true_capacity(Machine(), SETTINGS) * share_of_capacity
    return RateBracket(SETTINGS, rate, rate * 1.1)


def test_a_rate_that_holds_is_kept() -> None:
    """Three trials, below, at and beyond it."""
    laboratory = Laboratory(Machine())
    found = validate(standing(0.85), laboratory, BUDGET)
    assert found.holds
    assert [round(a.rate / found.rate, 1) for a in laboratory.measured] == [0.8, 1.0, 1.2]


def test_a_lucky_rate_is_lowered() -> None:
    """By tenths, until it holds."""
    best = standing(1.15)
    found = validate(best, Laboratory(Machine()), BUDGET)
    assert found.holds
    assert found.rate < best.met


def test_a_rate_far_too_high_does_not_hold() -> None:
    """After three tries it is given up."""
    laboratory = Laboratory(Machine())
    assert not validate(standing(3.0), laboratory, BUDGET).holds
    assert len(laboratory.measured) == 9


def test_collapse_is_seen() -> None:
    """Beyond its rate the service must still answer half as many in time."""

    def measure(asked: TrialRequest, beyond: float) -> TuningTrial:
        good = 100.0 if asked.rate <= 101 else beyond
        trial = TuningTrial(asked, "met", 0, 0, 0, 100, 1.0)
        return replace(trial, figures={"goodput_rps": good})

    best = RateBracket(SETTINGS, 100.0, 110.0)
    assert validate(best, lambda asked: measure(asked, 80.0), BUDGET).sheds
    assert not validate(best, lambda asked: measure(asked, 20.0), BUDGET).sheds


def session_with(found: float, held: float, before: float) -> TuningResult:
    """A session that found a rate, of which another one held on a fresh server."""

    def trial(rate: float) -> TuningTrial:
        made = TuningTrial(TrialRequest(SETTINGS, rate, 5.0), "met", 0, 0, 0.005, 500, 5.0)
        return replace(made, figures={"goodput_rps": rate})

    old = RateBracket({**SETTINGS, "instances": 1}, before, before * 1.05, trial(before))
    best = RateBracket(SETTINGS, found, found * 1.05, trial(found))
    outcome = SearchOutcome(old, best, True, "side by side", (), (), (trial(found),), True)
    space = SearchSpace(PROJECT, "m", (), cores=2, artefacts={})
    trials = tuple(trial(held * factor) for factor in FACTORS)
    session = TuningSession(Path("folder"), "context")
    return TuningResult(session, space, None, lambda _: None, outcome, Validation(held, trials))


def test_the_rate_that_is_told_is_the_one_that_held() -> None:
    """The gain, too: of what was validated, not of what the search saw."""
    tuned = session_with(found=150.0, held=121.5, before=100.0)
    told = "\\n".join(conclusion_sentences(tuned))
    assert tuned.worth_it
    assert "tuned: 121.5 requests/s within the SLO, +22%" in told
    assert "150/s, the search's result, did not hold on a fresh server" in told
    assert to_record(tuned)["best"]["met"] == 121.5
    kept = session_with(found=150.0, held=150.0, before=100.0)
    assert "tuned: 150 requests/s within the SLO, +50%" in "\\n".join(conclusion_sentences(kept))


def test_no_gain_is_left_on_a_fresh_server() -> None:
    """Settings that hold no more than today's are not worth a change."""
    tuned = session_with(found=110.0, held=89.1, before=100.0)
    assert not tuned.worth_it
    told = conclusion_sentences(tuned)[1]
    assert told.startswith(
        "keep the current settings: on a fresh server the new settings held only"
    )
    assert "89.1 requests/s, no more than the current ones" in told

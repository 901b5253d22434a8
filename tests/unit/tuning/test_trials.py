# SPDX-License-Identifier: Apache-2.0
"""Stored trials: found again, and only where everything that counts is equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tritonctl.tuning.trials import TrialRequest, TrialStore, TuningTrial, pool_shares

ASKED = TrialRequest({"engine.instances": 2, "inline_detokenizer": True}, 12.5, 20.0)
TRIAL = TuningTrial(ASKED, "met", 0.004, 0.001, 0.008, 2500, 21.5, p99_ms={"ttft": 41.5})


def test_a_trial_comes_back_as_it_was(tmp_path: Path) -> None:
    """From its file, in another process."""
    TrialStore(tmp_path, "engine 1").save(TRIAL)
    assert TrialStore(tmp_path, "engine 1").find(ASKED) == TRIAL


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, settings={**ASKED.settings, "engine.instances": 3}),
        replace(ASKED, rate=12.6),
        replace(ASKED, seconds=21.0),
        replace(ASKED, repeat=1),
    ],
    ids=["settings", "rate", "seconds", "repeat"],
)
def test_another_question_is_another_trial(tmp_path: Path, other: TrialRequest) -> None:
    """All of what was asked is in the name."""
    store = TrialStore(tmp_path, "engine 1")
    store.save(TRIAL)
    assert store.find(other) is None


def test_another_engine_is_another_trial(tmp_path: Path) -> None:
    """So is another server, another load."""
    TrialStore(tmp_path, "engine 1").save(TRIAL)
    assert TrialStore(tmp_path, "engine 2").find(ASKED) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"asked": {}}', '{"asked": {"settings": {}}}'])
def test_a_damaged_file_is_measured_again(tmp_path: Path, text: str) -> None:
    """Whatever a killed process or a full disk left behind."""
    store = TrialStore(tmp_path, "engine 1")
    store.save(TRIAL)
    (store.trial_folder(ASKED) / "trial.json").write_text(text, encoding="utf-8")
    assert store.find(ASKED) is None


def test_the_order_of_settings_does_not_count(tmp_path: Path) -> None:
    """The same settings, written differently."""
    store = TrialStore(tmp_path, "engine 1")
    store.save(TRIAL)
    swapped = dict(reversed(list(ASKED.settings.items())))
    assert store.find(replace(ASKED, settings=swapped)) == TRIAL


def test_leaning() -> None:
    """Without a verdict, the measured share decides; with one, the verdict."""
    open_ = replace(TRIAL, verdict="undecided")
    assert open_.leans_met
    assert not replace(open_, share_over=0.02).leans_met
    assert not replace(TRIAL, verdict="missed").leans_met


def test_pooling_weighs_by_requests() -> None:
    """Shares of unequal trials."""
    other = replace(TRIAL, share_over=0.04, requests=500)
    share, tolerated = pool_shares([TRIAL, other])
    assert share == pytest.approx((0.004 * 2500 + 0.04 * 500) / 3000)
    assert tolerated == 0.01

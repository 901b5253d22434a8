# SPDX-License-Identifier: Apache-2.0
"""The page of a tuning session: every trial a point, the words of the conclusion, no fetches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report_page import Reader, series_of
from tests.unit.tuning.test_step_explanation import SPACE
from tritonctl.tuning.outcome import RateBracket, SearchOutcome, SearchStep
from tritonctl.tuning.report import conclusion_sentences, write_report
from tritonctl.tuning.session import TuningSession
from tritonctl.tuning.trials import TrialRequest, TuningTrial, Verdict
from tritonctl.tuning.tuner import TuningResult

BASE = SPACE.base
TUNED = {**BASE, "threads": 3}
HOSTILE = "</script><b>&"


def trial(rate: float, p99: float, verdict: Verdict, memory: int, threads: int = 2) -> TuningTrial:
    request = TrialRequest({**BASE, "threads": threads}, rate, 5.0)
    figures = {"rss_bytes": memory << 20}
    return TuningTrial(
        request, verdict, 0, 0, 0, 50, 5.0, p99_ms={"e2e": p99} if p99 else {}, figures=figures
    )


TRIALS = (
    trial(10, 20, "met", 500),
    trial(20, 90, "missed", 500),
    trial(20, 40, "met", 1000, threads=3),
    trial(25, 60, "undecided", 1000, threads=3),
    trial(30, 0, "missed", 1000, threads=3),  # without answers, so without a P99
)


def session(folder: Path, trials: tuple[TuningTrial, ...] = TRIALS) -> TuningResult:
    """A session that found better settings."""
    step = SearchStep("threads", TUNED, 20.0, True, TRIALS[2])
    outcome = SearchOutcome(
        RateBracket(BASE, 10.0, 20.0, TRIALS[0]),
        RateBracket(TUNED, 20.0, 30.0, TRIALS[2]),
        True,
        f"better side by side {HOSTILE}",
        (step,),
        (),
        trials,
        True,
    )
    return TuningResult(TuningSession(folder, "c"), SPACE, None, lambda _: None, outcome, None)


def test_every_trial_with_a_p99_is_a_point(tmp_path: Path) -> None:
    """By verdict; a point is larger the more memory the server took."""
    page = Reader.of(write_report(session(tmp_path)).read_text(encoding="utf-8"))
    figure = page.figures()["pareto"]
    met = series_of(figure, "met")
    assert (met["x"], met["y"]) == ([10, 20], [20, 40])
    assert met["size"][0] < met["size"][1]
    assert met["texts"] == ["unchanged\n500 MiB", "threads 3\n1000 MiB"]
    assert series_of(figure, "missed")["x"] == [20]
    assert series_of(figure, "undecided")["x"] == [25]
    assert figure["x"]["title"] == "requests per second"
    assert figure["rows"][0]["title"] == "P99 of e2e, ms"


def test_conclusion_steps_and_result_are_on_the_page(tmp_path: Path) -> None:
    """In words, as text; report.json word for word."""
    tuned = session(tmp_path)
    page = Reader.of(write_report(tuned).read_text(encoding="utf-8"))
    [verdict] = [e.text for e in page.all("p") if e.attributes.get("class") == "verdict"]
    headline, *sentences = conclusion_sentences(tuned)
    assert verdict == "\n".join(sentences)
    assert HOSTILE in verdict
    assert headline in [e.text for e in page.all("p")]
    assert page.table("The steps of the search")[1][:4] == ["threads", "3", "20/s", "better"]
    record = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert json.loads(page.all("pre")[0].text) == record
    assert len(page.all("script")) == 3


@pytest.mark.parametrize("trials", [(), TRIALS[-1:]])
def test_without_a_p99_there_is_no_chart(tmp_path: Path, trials: tuple[TuningTrial, ...]) -> None:
    """An empty chart would say nothing."""
    page = Reader.of(write_report(session(tmp_path, trials)).read_text(encoding="utf-8"))
    assert page.figures() == {}
    assert page.table("The steps of the search")

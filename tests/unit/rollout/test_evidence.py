# SPDX-License-Identifier: Apache-2.0
"""What a judge knows, kept and restored: the bets of one that never stopped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tritonctl.project.rollout import Rollout
from tritonctl.rollout.evidence import restore, save
from tritonctl.rollout.judge import Judge
from tritonctl.rollout.metrics import Counters, Distances, Histogram, Scrape

ROLLOUT = Rollout(steps=[5, 50, 100], shadow=0.1, warm_up_seconds=3)
BOUNDS = (0.1, 0.15, 0.2, 0.3)


def scrapes(seconds: int) -> Iterator[Scrape]:
    """A candidate that is somewhat worse in everything, for so long."""
    draw = random.Random(5)  # noqa: S311 - a seeded experiment
    totals = {slot: [0, 0, *[0] * 5] for slot in "ab"}
    spent = dict.fromkeys("ab", 0.0)
    for second in range(seconds):
        for slot, requests in (("a", 15), ("b", 6)):
            total = totals[slot]
            total[0] += requests
            total[1] += draw.random() < (0.3 if slot == "b" else 0.2)
            spent[slot] += 5 * requests * draw.lognormvariate(-4, 0.1)
            for _ in range(requests):
                took = draw.lognormvariate(-1.9, 0.3) * (1.1 if slot == "b" else 1)
                total[2 + sum(took > bound for bound in BOUNDS)] += 1
        stable, candidate = (
            Counters(
                each[0],
                each[1],
                {
                    "ttft": Histogram(BOUNDS, tuple(each[2:])),
                    "itl": Histogram((0.01,), (4 * each[0], each[0])),
                },
                int(1e9 + 1e6 * second * (slot == "b") + draw.gauss(0, 1e6)),
                None,
                spent[slot],
            )
            for slot, each in totals.items()
        )
        answers = [Distances(0.0, float(draw.random() < 0.05))]
        yield Scrape(float(second), stable, candidate, 6 * second, answers)


def test_another_process_goes_on(tmp_path: Path) -> None:
    """Each fifth second the judge dies; its successor's clock is another, and its bets the same."""
    times = ("ttft", "itl")
    whole = Judge(ROLLOUT, 0.0, times=times)
    often = Judge(ROLLOUT, 0.0, times=times)
    shift = 0.0
    for number, scrape in enumerate(scrapes(60), start=1):
        first = whole.observe(scrape)
        moved = Scrape(
            scrape.at + shift, scrape.stable, scrape.candidate, scrape.sent, scrape.answers
        )
        second = often.observe(moved)
        assert (first.status, first.figures) == (second.status, second.figures)
        if number % 5 == 0:
            save(tmp_path, often, moved.at, {"offset": number})
            shift += 1000.0
            often = Judge(ROLLOUT, scrape.at + shift, times=times)
            assert restore(tmp_path, often, scrape.at + shift) == {"offset": number}
    assert whole.verdict.evidence["failures"] != 1
    assert whole.verdict.evidence["memory"] != 0.125
    for name in ("ttft", "itl", "tokens_per_second"):
        assert whole.verdict.evidence[name] != 1


def test_other_tests_do_not_fit(tmp_path: Path) -> None:
    """Settings that have changed, or a damaged file: there is nothing to go on with."""
    judge = Judge(ROLLOUT, 0.0, times=("ttft",))
    save(tmp_path, judge, 0.0, {})
    assert restore(tmp_path, Judge(ROLLOUT, 0.0), 0.0) is None
    assert restore(tmp_path, Judge(ROLLOUT, 0.0, times=("ttft",)), 0.0) == {}
    file = next(tmp_path.iterdir())
    text = file.read_text()
    for old, new in (("[", "[1,"), ("0.", '"x",0.'), ("{", "["), ("2,", "NaN,")):
        file.write_text(text.replace(old, new))
        assert restore(tmp_path, Judge(ROLLOUT, 0.0, times=("ttft",)), 0.0) is None
    assert restore(tmp_path / "none", judge, 0.0) is None

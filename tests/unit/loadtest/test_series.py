# SPDX-License-Identifier: Apache-2.0
"""The durations of requests: from plan, from sending, between tokens; and whose they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonctl.loadtest.analysis.columns import NEVER, Columns
from tritonctl.loadtest.analysis.records import LoadRecord
from tritonctl.loadtest.analysis.series import duration_series

COOL_DOWN = 30_000_000


def record(**changes: Any) -> LoadRecord:
    """Planned at 1 ms, sent at 3 ms, tokens at 10, 20 and 50 ms."""
    given: dict[str, Any] = {
        "i": 0,
        "class": "short",
        "planned": 1000,
        "sent": 3000,
        "at": [10_000, 20_000, 50_000],
        "end": 51_000,
        "outcome": "ok",
    }
    return LoadRecord.model_validate(given | changes)


def values(*records: LoadRecord) -> dict[str, list[float]]:
    """The durations by metric."""
    found = duration_series(Columns.from_records(records), COOL_DOWN)
    return {name: series.values.tolist() for name, series in found.items()}


def test_one_request() -> None:
    """Response times begin with the plan, service times with sending."""
    assert values(record()) == {
        "ttft": [9000],
        "itl": [10_000, 30_000],
        "tpot": [20_000],
        "e2e": [50_000],
        "service_ttft": [7000],
        "service_e2e": [48_000],
        "send_lag": [2000],
    }


def test_chunks() -> None:
    """A chunk of three tokens is three gaps of a third; what comes with the first has no gap."""
    columns = Columns.from_records([record(n=[2, 1, 3]), record(at=[9000], n=[4])])
    found = duration_series(columns, COOL_DOWN)
    assert found["itl"].values.tolist() == [10_000, 10_000]
    assert found["itl"].weights.tolist() == [1, 3]
    assert len(found["itl"]) == 4
    assert found["tpot"].values.tolist() == [8000], "tokens of one response have no time between"
    assert columns.tokens.tolist() == [6, 4]


def test_tensors() -> None:
    """One answer, no tokens: no metrics of tokens."""
    assert set(values(record(at=[], out=None))) == {"e2e", "service_e2e", "send_lag"}


def test_failures_have_no_duration() -> None:
    """Errors are counted, not timed; a cancelled stream has a first token and gaps, but no end."""
    broken = {"outcome": "error", "error": {"kind": "UNAVAILABLE", "message": ""}}
    assert set(values(record(**broken))) == {"send_lag"}
    assert set(values(record(outcome="cancelled"))) == {
        "ttft",
        "itl",
        "tpot",
        "service_ttft",
        "send_lag",
    }


def test_requests_that_were_given_up() -> None:
    """They took at least as long as was waited, and count with that."""
    late = record(outcome="timeout", at=[], end=60_001_000, planned=1000)
    found = duration_series(Columns.from_records([record(), late]), COOL_DOWN)
    assert found["ttft"].values.tolist() == [9000, 60_000_000]
    assert found["e2e"].values.tolist() == [50_000, 60_000_000]
    assert found["ttft"].censored == found["e2e"].censored == 1
    begun = duration_series(
        Columns.from_records([record(outcome="timeout", end=60_001_000)]), COOL_DOWN
    )
    assert begun["ttft"].values.tolist() == [9000]
    assert begun["ttft"].censored == 0


def test_cancelled_before_the_first_token() -> None:
    """It would have taken longer than it was waited for: like those that did, evenly."""
    hung_up = [record(outcome="cancelled", at=[], end=end) for end in (101_000, 201_000)]
    found = duration_series(Columns.from_records([record(), *hung_up]), COOL_DOWN)["ttft"]
    assert (found.values.tolist(), found.censored) == ([9000, 100_000, 200_000], 2)
    slow = [record(at=[at], end=at) for at in (151_000, 301_000, 401_000)]
    found = duration_series(Columns.from_records([record(), *hung_up, *slow]), COOL_DOWN)["ttft"]
    assert found.values.tolist() == [9000, 300_000, 300_000, 150_000, 300_000, 400_000]


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_impatience_hides_no_tail(share: float) -> None:
    """Users who hang up after 200 ms: a tenth of the answers begin after a second all the same."""
    random = np.random.default_rng(4)
    records = []
    for number in range(4000):
        ttft = 1_000_000 if random.random() < 0.1 else 20_000
        hangs_up = random.random() < share and ttft > 200_000
        how: dict[str, Any] = {"at": [1000 + ttft], "end": 1000 + ttft}
        if hangs_up:
            how = {"at": [], "end": 201_000, "outcome": "cancelled"}
        records.append(record(i=number, **how))
    found = duration_series(Columns.from_records(records), COOL_DOWN)["ttft"]
    assert np.mean(found.values > 100_000) == pytest.approx(0.1, abs=0.02)
    assert np.quantile(found.values, 0.99) == (200_000 if share == 1 else 1_000_000)


def test_streams_that_hang_show_it_between_tokens() -> None:
    """The gap that never ended is as long as was waited, and is told to be a lower bound."""
    hung = record(outcome="timeout", at=[10_000, 20_000], end=60_001_000)
    found = duration_series(Columns.from_records([hung, record()]), COOL_DOWN)["itl"]
    assert found.values.tolist() == [10_000, 59_981_000, 10_000, 30_000]
    assert (found.owner.tolist(), found.censored) == ([0, 0, 1, 1], 1)


@pytest.mark.parametrize(("end", "told"), [(29_000_000, False), (31_000_000, True)])
def test_abandoned(end: int, told: bool) -> None:
    """After the whole cool-down it says something; when the user gave up, nothing."""
    found = duration_series(
        Columns.from_records([record(), record(outcome="abandoned", at=[], end=end)]), COOL_DOWN
    )
    assert len(found["e2e"]) == (2 if told else 1)


def test_nothing() -> None:
    """No request, no metric."""
    columns = Columns.from_records([])
    assert len(columns) == 0
    assert duration_series(columns, COOL_DOWN) == {}
    assert len(columns.select(np.zeros(0, dtype=bool))) == 0


times = st.lists(st.integers(0, 1000), max_size=5).map(sorted)


@given(st.lists(st.tuples(times, st.sampled_from(["a", "b"]), st.booleans()), max_size=12))
def test_a_selection_is_as_if_nothing_else_had_been_recorded(
    drawn: list[tuple[list[int], str, bool]],
) -> None:
    """Columns of chosen records are the chosen columns."""
    records = [
        record(i=i, at=[3000 + t for t in at], n=[1 + t % 3 for t in at], **{"class": name})
        for i, (at, name, _) in enumerate(drawn)
    ]
    mask = np.array([kept for _, _, kept in drawn], dtype=bool)
    selected = Columns.from_records(records).select(mask)
    direct = Columns.from_records(
        [r for r, (_, _, kept) in zip(records, drawn, strict=True) if kept]
    )
    for name in ("first", "last", "tokens", "starts", "response_at", "response_tokens"):
        assert getattr(selected, name).tolist() == getattr(direct, name).tolist()
    for name in direct.class_names:
        assert selected.in_class(name).tolist() == direct.in_class(name).tolist()
    assert [first == NEVER for first in direct.first] == [not at for at, _, kept in drawn if kept]

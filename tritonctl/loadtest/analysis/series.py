# SPDX-License-Identifier: Apache-2.0
"""Compute a load test's durations from the times of its requests.

Failed requests have no duration: they count as over every SLO limit. Requests given up (timeout;
abandoned after the whole cool-down) count with the time waited, a lower bound: dropping them would
flatter the tail. An answer without tokens has only an end. A request that the scenario cancelled
before its first token would also have taken longer than the wait: it counts like one that did (E.
Kaplan, P. Meier, "Nonparametric estimation from incomplete observations", JASA 53, 1958).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass

import numpy as np

from tritonctl.loadtest.analysis.columns import NEVER, Columns, Floats, Integers, Mask

_GOLDEN = 0.618033988749895  # its multiples lie evenly between 0 and 1
METRICS = ("ttft", "itl", "tpot", "e2e", "service_ttft", "service_e2e", "send_lag")


@dataclass(frozen=True)
class Series:
    """Durations in microseconds in plan order."""

    values: Floats
    weights: Integers  # tokens per duration
    owner: Integers  # index of the request
    censored: int = 0  # number of lower bounds

    def __len__(self) -> int:
        """The number of durations by weight."""
        return int(self.weights.sum())


def duration_series(columns: Columns, cool_down_us: int) -> dict[str, Series]:
    """Return the series of every metric with values.

    ttft, e2e: from the planned time (response time); service_*: from the send (service time).
    itl: each gap between two responses divided by the tokens of the later one, weighted by them:
    a chunk of three tokens after 30 ms is three gaps of 10 ms. tpot: (last token - first token) /
    (tokens - 1) of a request with two responses or more, its mean, which hides stalls.
    """
    given_up = given_up_requests(columns, cool_down_us)
    answered = columns.has_outcome("ok", "cancelled")
    started = (columns.first != NEVER) & (answered | columns.has_outcome("timeout", "abandoned"))
    no_token = (columns.first == NEVER) & columns.is_text
    silent = given_up & no_token
    cancelled_early = columns.has_outcome("cancelled") & no_token
    finished = columns.has_outcome("ok")
    start_times = {"": columns.planned, "service_": columns.sent}
    series = {
        "itl": _itl_series(columns, answered, given_up),
        "tpot": _tpot_series(columns, answered),
    }
    for prefix, start in start_times.items():
        first = np.where(silent | cancelled_early, columns.end, columns.first) - start
        first[cancelled_early] = _extrapolate_waits(first[cancelled_early], first[started | silent])
        censored = int((silent | cancelled_early).sum())
        series[f"{prefix}ttft"] = _request_series(
            first, started | silent | cancelled_early, censored
        )
        has_duration = finished | given_up
        series[f"{prefix}e2e"] = _request_series(
            columns.end - start, has_duration, int(given_up.sum())
        )
    series["send_lag"] = _request_series(
        columns.sent - columns.planned, np.ones(len(columns), dtype=bool)
    )
    return {name: series[name] for name in METRICS if len(series[name])}


def given_up_requests(columns: Columns, cool_down_us: int) -> Mask:
    """Return a mask of requests given up after a wait long enough to count."""
    waited = columns.end - columns.planned >= cool_down_us
    return np.asarray(columns.has_outcome("timeout") | (columns.has_outcome("abandoned") & waited))


def _request_series(durations: Integers, mask: Mask, censored: int = 0) -> Series:
    owner = np.flatnonzero(mask)
    values = np.maximum(durations[owner], 0).astype(np.float64)
    return Series(values, np.ones(len(owner), dtype=np.int64), owner, censored)


def _extrapolate_waits(waits: Integers, observed: Integers) -> Integers:
    """Replace cancelled waits by longer observed ones, spread evenly.

    A wait without a longer observed one stays.
    """
    longer, lengths = sorted(observed.tolist()), waits.copy()
    for number, index in enumerate(np.argsort(-waits, kind="stable").tolist()):
        position = bisect_right(longer, lengths[index])
        if position < len(longer):
            lengths[index] = longer[
                position + int((len(longer) - position) * (number * _GOLDEN % 1))
            ]
            insort(longer, int(lengths[index]))
    return lengths


def _itl_series(columns: Columns, answered: Mask, given_up: Mask) -> Series:
    """Return gaps between responses. The last gap of a stream given up is a lower bound."""
    mask = answered | given_up
    responses = columns.responses
    owner = np.repeat(np.arange(len(columns)), responses)
    # The first response of a request has no gap before it.
    follows_response = np.ones(len(owner), dtype=bool)
    follows_response[columns.starts[:-1][responses > 0]] = False
    gap_ends = np.flatnonzero(follows_response & mask[owner] & (columns.response_tokens > 0))
    tokens = columns.response_tokens[gap_ends]
    gaps = columns.response_at[gap_ends] - columns.response_at[gap_ends - 1]
    stalled = np.flatnonzero(given_up & (columns.first != NEVER))
    values = np.concatenate((gaps / tokens, columns.end[stalled] - columns.last[stalled]))
    weights = np.concatenate((tokens, np.ones(len(stalled), dtype=np.int64)))
    owners = np.concatenate((owner[gap_ends], stalled))
    order = np.argsort(owners, kind="stable")
    return Series(values[order], weights[order], owners[order], len(stalled))


def _tpot_series(columns: Columns, mask: Mask) -> Series:
    # Tokens of a single response have no time between them.
    owner = np.flatnonzero(mask & (columns.tokens > 1) & (columns.responses > 1))
    means = (columns.last[owner] - columns.first[owner]) / (columns.tokens[owner] - 1)
    return Series(means, np.ones(len(owner), dtype=np.int64), owner)

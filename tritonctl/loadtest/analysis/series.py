# SPDX-License-Identifier: Apache-2.0
"""The durations that a load test is about, taken from the times of its requests.

Requests that failed have no duration: they count as over every limit of the SLO instead. Those that
were given up (timeout; abandoned after the whole cool-down) took at least as long as was waited,
and count with that: to drop them would flatter the tail. One that the scenario cancelled before its
first token would have taken longer than it was waited for, too: it counts like one that did (E.
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
    """Durations in microseconds in the order of the plan; `owner` is the request of each.

    A weight says for how many tokens a duration stands. `censored` values are lower bounds.
    """

    values: Floats
    weights: Integers
    owner: Integers
    censored: int = 0

    def __len__(self) -> int:
        """How many durations, by weight."""
        return int(self.weights.sum())


def measured(columns: Columns, cool_down_us: int) -> dict[str, Series]:
    """Every metric that these requests have values of.

    ttft, e2e: from the planned time (response time); service_*: from the sent one (service time).
    itl: each gap between two responses divided by the tokens of the later one, weighted by them:
    a chunk of three tokens after 30 ms is three gaps of 10 ms. tpot: (last token - first token) /
    (tokens - 1) of a request, its mean, which hides stalls.
    """
    given_up = gave_up(columns, cool_down_us)
    answered = columns.ended("ok", "cancelled")
    started = (columns.first != NEVER) & (answered | columns.ended("timeout", "abandoned"))
    no_token = (columns.first == NEVER) & bool(len(columns.response_at))
    silent = given_up & no_token
    cut = columns.ended("cancelled") & no_token
    finished = columns.ended("ok")
    since = {"": columns.planned, "service_": columns.sent}
    series = {"itl": _itl(columns, answered, given_up), "tpot": _tpot(columns, answered)}
    for prefix, begin in since.items():
        first = np.where(silent | cut, columns.end, columns.first) - begin
        first[cut] = _extrapolated(first[cut], first[started | silent])
        censored = int((silent | cut).sum())
        series[f"{prefix}ttft"] = _each(first, started | silent | cut, censored)
        ended = finished | given_up
        series[f"{prefix}e2e"] = _each(columns.end - begin, ended, int(given_up.sum()))
    series["send_lag"] = _each(columns.sent - columns.planned, np.ones(len(columns), dtype=bool))
    return {name: series[name] for name in METRICS if len(series[name])}


def gave_up(columns: Columns, cool_down_us: int) -> Mask:
    """Requests whose wait was cut, but after so long that it says something."""
    waited = columns.end - columns.planned >= cool_down_us
    return np.asarray(columns.ended("timeout") | (columns.ended("abandoned") & waited))


def _each(durations: Integers, mask: Mask, censored: int = 0) -> Series:
    owner = np.flatnonzero(mask)
    values = np.maximum(durations[owner], 0).astype(np.float64)
    return Series(values, np.ones(len(owner), dtype=np.int64), owner, censored)


def _extrapolated(waits: Integers, known: Integers) -> Integers:
    """What waits that were cut short would have come to: evenly what took longer; where nothing
    did, the wait itself."""
    longer, lengths = sorted(known.tolist()), waits.copy()
    for number, place in enumerate(np.argsort(-waits, kind="stable").tolist()):
        begin = bisect_right(longer, lengths[place])
        if begin < len(longer):
            lengths[place] = longer[begin + int((len(longer) - begin) * (number * _GOLDEN % 1))]
            insort(longer, int(lengths[place]))
    return lengths


def _itl(columns: Columns, answered: Mask, given_up: Mask) -> Series:
    """Gaps between responses. Of streams that were given up the last one never ended."""
    mask = answered | given_up
    responses = np.diff(columns.starts)
    owner = np.repeat(np.arange(len(columns)), responses)
    # The first response of a request follows no other.
    later = np.ones(len(owner), dtype=bool)
    later[columns.starts[:-1][responses > 0]] = False
    chosen = np.flatnonzero(later & mask[owner] & (columns.response_tokens > 0))
    tokens = columns.response_tokens[chosen]
    gaps = columns.response_at[chosen] - columns.response_at[chosen - 1]
    hung = np.flatnonzero(given_up & (columns.first != NEVER))
    values = np.concatenate((gaps / tokens, columns.end[hung] - columns.last[hung]))
    weights = np.concatenate((tokens, np.ones(len(hung), dtype=np.int64)))
    owners = np.concatenate((owner[chosen], hung))
    order = np.argsort(owners, kind="stable")
    return Series(values[order], weights[order], owners[order], len(hung))


def _tpot(columns: Columns, mask: Mask) -> Series:
    owner = np.flatnonzero(mask & (columns.tokens > 1))
    means = (columns.last[owner] - columns.first[owner]) / (columns.tokens[owner] - 1)
    return Series(means, np.ones(len(owner), dtype=np.int64), owner)

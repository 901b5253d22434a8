# SPDX-License-Identifier: Apache-2.0
"""The SLO of each model: which events spend its error budget, and which burn rates alert.

Multi-window, multi-burn-rate alerts as in chapter 5 of Google's SRE workbook, for a budget of 30
days. A latency target for 99 % of the events has a budget of 1 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonctl.project.schema import Project

Rule = dict[str, Any]
Group = dict[str, Any]

_RANGE = "5m"
BAD, EVENTS = "public_model:slo_bad:rate5m", "public_model:slo_events:rate5m"
RATIO = "public_model:slo_bad_ratio:rate{}"
# Upper bounds of the engines' buckets, seconds: python_backends/textlib/triton/engine_metrics.py.
BOUNDS = {
    "tritonctl_time_to_first_token_seconds": (
        0.001, 0.00125, 0.0016, 0.002, 0.0025, 0.00315, 0.004, 0.005, 0.0063, 0.008,
        0.01, 0.0125, 0.016, 0.02, 0.025, 0.0315, 0.04, 0.05, 0.063, 0.08,
        0.1, 0.125, 0.16, 0.2, 0.25, 0.315, 0.4, 0.5, 0.63, 0.8,
        1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8, 10, 12.5, 16, 20, 25, 31.5, 40, 50, 60,
    ),
    "tritonctl_inter_token_latency_seconds": (
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5,
    ),
    "tritonctl_request_duration_seconds": (
        0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
    ),
}  # fmt: skip
_LATENCIES = {
    "ttft_p99_ms": "tritonctl_time_to_first_token_seconds",
    "itl_p99_ms": "tritonctl_inter_token_latency_seconds",
    "e2e_p99_ms": "tritonctl_request_duration_seconds",
}
_P99_BUDGET = 0.01


@dataclass(frozen=True)
class BurnRate:
    """An alert of the workbook's table: a burn rate over a long and a short window."""

    long: str
    short: str
    factor: float
    severity: str
    spent: str


BURNS = (
    BurnRate("1h", "5m", 14.4, "page", "2 % of 30 days' budget in an hour"),
    BurnRate("6h", "30m", 6, "page", "5 % of 30 days' budget in six hours"),
    BurnRate("1d", "2h", 3, "ticket", "10 % of 30 days' budget in a day"),
    BurnRate("3d", "6h", 1, "ticket", "10 % of 30 days' budget in three days"),
)
WINDOWS = ("30m", "1h", "2h", "6h", "1d", "3d")


@dataclass(frozen=True)
class Objective:
    """One SLO target: its events, the bad ones among them, and the share that may be bad."""

    public_model: str
    slo: str
    budget: float
    bad: str
    events: str


def objectives(project: Project) -> list[Objective]:
    """Every SLO target of the project."""
    targets = []
    for name, model in sorted(project.models.items()):
        if model.slo.error_rate is not None:
            targets.append(_availability(name, model.slo.error_rate))
        for field, metric in _LATENCIES.items():
            if (limit := getattr(model.slo, field)) is not None:
                targets.append(_latency(name, field, metric, limit / 1000))
    return targets


def _availability(name: str, budget: float) -> Objective:
    """Failures, without those that only the client could have avoided."""
    model_selector = f'{{public_model="{name}"}}'
    failures = f"public_model:failures:rate5m{model_selector}"
    invalid = f'public_model:errors:rate5m{{public_model="{name}",reason="invalid"}}'
    bad = f"clamp_min(({failures} - ignoring (reason) {invalid}) or {failures}, 0)"
    answers = f"public_model:answers:rate5m{model_selector}"
    return Objective(name, "error_rate", budget, bad, f"({answers} + {bad}) or {answers}")


def _latency(name: str, field: str, metric: str, limit: float) -> Objective:
    events = _rate(f"{metric}_count", f'public_model="{name}"')
    return Objective(
        name,
        field,
        _P99_BUDGET,
        f"clamp_min({events} - ({_rate_within_expr(name, metric, limit)}), 0)",
        events,
    )


def _rate_within_expr(name: str, metric: str, limit: float) -> str:
    """Return the PromQL rate of events within `limit`, interpolated between two bucket bounds.

    histogram_quantile does the same. Events beyond the last bound count as late.
    """
    bounds = BOUNDS[metric]
    upper = next((bound for bound in bounds if bound >= limit), None)
    if upper is None or upper == limit:
        return _bucket(name, metric, upper or bounds[-1])
    lower = max((bound for bound in bounds if bound < limit), default=0.0)
    share = (limit - lower) / (upper - lower)
    upper_part = f"{share:.6g} * {_bucket(name, metric, upper)}"
    return (
        f"{upper_part} + {1 - share:.6g} * {_bucket(name, metric, lower)}" if lower else upper_part
    )


def _bucket(name: str, metric: str, bound: float) -> str:
    # Some versions of Prometheus write 1 as 1.0.
    le = f'=~"{bound}(\\\\.0)?"' if bound == int(bound) else f'="{bound}"'
    return _rate(f"{metric}_bucket", f'public_model="{name}",le{le}')


def _rate(metric: str, matchers: str) -> str:
    return f"sum by (public_model) (rate({metric}{{{matchers}}}[{_RANGE}]))"


def _record(name: str, expression: str, **labels: str) -> Rule:
    rule: Rule = {"record": name, "expr": expression}
    return rule | ({"labels": labels} if labels else {})


def slo_groups(project: Project) -> list[Group]:
    """Recording rules for the SLO targets; [] without any."""
    targets = objectives(project)
    if not targets:
        return []
    rules: list[Rule] = []
    for target in targets:
        rules.append(_record(BAD, target.bad, slo=target.slo))
        rules.append(_record(EVENTS, target.events, slo=target.slo))
    rules.append(_record(RATIO.format(_RANGE), f"{BAD} / ({EVENTS} > 0)"))
    for window in WINDOWS:
        ratio = f"avg_over_time({BAD}[{window}]) / (avg_over_time({EVENTS}[{window}]) > 0)"
        rules.append(_record(RATIO.format(window), ratio))
    return [{"name": "tritonctl-slo", "rules": rules}]

# SPDX-License-Identifier: Apache-2.0
"""The dashboard's row of the frontend: what clients of the OpenAI API and tenants see."""

from __future__ import annotations

from tritonctl.frontend import metrics
from tritonctl.server.observe.panels import Panel, Query
from tritonctl.server.observe.recording import QUANTILES, RANGE, rate

_MODEL = {"model": "~$model"}
_BY = "tenant, model"
_LEGEND = "{{tenant}} {{model}}"


def frontend_panels() -> tuple[Panel, ...]:
    """By tenant and model."""
    return (
        Panel(
            "Frontend: requests by outcome",
            "Every request to the OpenAI API; refused ones have their reasons beside.",
            (Query(_rate(metrics.REQUESTS, "model, outcome"), "{{model}} {{outcome}}"),),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Frontend: refused or failed, by reason",
            "over_budget and overloaded come back with retry-after; failed is in its log.",
            (Query(_rate(metrics.REFUSALS, "tenant, model, reason"), f"{_LEGEND} {{{{reason}}}}"),),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Frontend: in flight",
            "Requests that are being answered.",
            (Query(_sum(metrics.IN_FLIGHT), _LEGEND),),
            stacked=True,
        ),
        _quantiles("Frontend: time to first token", metrics.TTFT),
        _quantiles("Frontend: inter-token latency", metrics.ITL),
        _quantiles("Frontend: duration of requests", metrics.DURATION),
        Panel(
            "Frontend: tokens",
            "Of prompts in, of answers out.",
            (
                Query(_rate(metrics.OUTPUT_TOKENS, _BY), f"{_LEGEND} out"),
                Query(_rate(metrics.PROMPT_TOKENS, _BY), f"{_LEGEND} in"),
            ),
            width=12,
        ),
        Panel(
            "Frontend: tokens reserved and given back",
            "What is given back was reserved for longer answers than came: clients that set "
            "max_tokens lower get more into their budgets.",
            (
                Query(_rate(metrics.RESERVED_TOKENS, _BY), f"{_LEGEND} reserved"),
                Query(_rate(metrics.REFUNDED_TOKENS, _BY), f"{_LEGEND} given back"),
            ),
            width=12,
        ),
    )


def _rate(metric: str, by: str) -> str:
    return rate(f"{metric}_total", by, **_MODEL)


def _sum(metric: str) -> str:
    return f'sum by ({_BY}) ({metric}{{model=~"$model"}})'


def _quantiles(title: str, metric: str) -> Panel:
    queries = tuple(
        Query(
            f"histogram_quantile({quantile}, sum by (model, le) "
            f'(rate({metric}_bucket{{model=~"$model"}}[{RANGE}])))',
            f"{{{{model}}}} p{quantile * 100:g}",
        )
        for quantile in QUANTILES
    )
    return Panel(title, "Seen from the frontend, with its own time.", queries, "s")

# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/metrics.md, made of what the engines publish: `make reference`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python_backends"))

from textlib.engine_metrics import COUNTERS, GAUGES

from tritonctl.frontend import metrics as frontend

_HEAD = """\
<!-- Made by `make reference` from docs/metrics_page.py and
     python_backends/textlib/engine_metrics.py: edits are lost. -->

# Metrics

What each Python model of a text graph publishes on Triton's metrics port (8002), beside Triton's
own `nv_*` series; the label `model` names the model. Histograms are counters with a label `le`:
`histogram_quantile` and `rate` work on them as usual. What Prometheus records of all this, and the
alerts: [series, rules and alerts](monitoring.md). `tritonctl top` shows it live: [columns](top.md).
The histograms have users' requests only; what the shadow of a rollout asks is in all other counters
([why](../explanation/shadowing-a-release.md)).

| metric | kind | is |
|---|---|---|
"""
# Triton's own: docs/user_guide/metrics.md of triton-inference-server/server.
_TAIL = """
## Of the response cache

Triton's own series of models with [`serving.cache`](../how-to/cache-answers.md), with the labels
`model` and `version`; a model that is loaded again with other content is another version. Of an
ensemble Triton 2.51 counts none of these, as its version is not 1: `tritonctl top` and the recorded
`model:nv_cache:hit_ratio5m` take the requests that did not reach its steps.

| metric | kind | is |
|---|---|---|
| `nv_cache_num_hits_per_model` | counter | Requests that the cache answered |
| `nv_cache_num_misses_per_model` | counter | Requests that it had no answer to: the model gave it |
| `nv_cache_hit_duration_per_model` | counter | Microseconds of lookups that found an answer |
| `nv_cache_miss_duration_per_model` | counter | Microseconds of others, and of keeping answers |
"""


_FRONTEND = """
## Of the frontend

On `/metrics` of the frontend itself (port 9000), by `tenant` and `model` as the project names them;
requests by `endpoint` and `outcome`, refusals by `reason`, too. What clients send is never a label.
A tenant or model beyond the 500th counts as `other`; `none` is a request that has none.

| metric | kind | is |
|---|---|---|
"""


def page() -> str:
    """The page: the engines' gauges and counters, Triton's cache, the frontend's."""
    rows = [
        f"| `{name}` | {kind} | {text} |"
        for kind, table in (("gauge", GAUGES), ("counter", COUNTERS))
        for name, text in table.items()
    ]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL + _FRONTEND + "\n".join(_frontend()) + "\n"


def _frontend() -> list[str]:
    counters = [(f"{name}_total", "counter", text) for name, text in frontend.COUNTERS.items()]
    gauges = [(name, "gauge", text) for name, text in frontend.GAUGES.items()]
    histograms = [(name, "histogram", text) for name, text in frontend.HISTOGRAMS.items()]
    return [
        f"| `{name}` | {kind} | {text} |" for name, kind, text in counters + gauges + histograms
    ]


if __name__ == "__main__":
    sys.stdout.write(page())

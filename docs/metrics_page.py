# SPDX-License-Identifier: Apache-2.0
"""Prints docs/reference/metrics.md, made of what the engines publish: `make reference`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python_backends"))

from textlib.engine_metrics import COUNTERS, GAUGES

_HEAD = """\
<!-- Made by `make reference` from python_backends/textlib/engine_metrics.py: edits are lost. -->

# Metrics

What each Python model of a text graph publishes on Triton's metrics port (8002), beside Triton's
own `nv_*` series; the label `model` names the model. Histograms are counters with a label `le`:
`histogram_quantile` and `rate` work on them as usual. What Prometheus records of all this, and the
alerts: [series, rules and alerts](monitoring.md). `tritonctl top` shows it live: [columns](top.md).

| metric | kind | is |
|---|---|---|
"""


def page() -> str:
    """The page: gauges, then counters."""
    rows = [
        f"| `{name}` | {kind} | {text} |"
        for kind, table in (("gauge", GAUGES), ("counter", COUNTERS))
        for name, text in table.items()
    ]
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())

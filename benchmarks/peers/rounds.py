# SPDX-License-Identifier: Apache-2.0
"""One measurement of a server that is up, and ratios between those of a round."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers import HERE, Subject, Up, environment, python_of

Result = dict[str, float]


@dataclass(frozen=True)
class Load:
    """A closed loop of `streams` over the cases of a file, or arrivals at a rate."""

    title: str
    cases: Path
    streams: int = 0
    rate: float = 0.0


def measured(subject: Subject, up: Up, load: Load, job: Mapping[str, Any]) -> Result:
    """One measurement, in a process of its own. Ends the benchmark when that fails.

    job: `model`, `warm_up` and `seconds` of it, `seed`, and what requests of the subject need.
    """
    asked = {
        "subject": subject.name, "protocol": up.protocol, "url": up.url, "marker": up.marker,
        "cases": str(load.cases), "streams": load.streams, "rate": load.rate, **job,
    }  # fmt: skip
    file = write(subject.folder / "job.json", asked)
    command, marker = [python_of("client"), HERE / "load.py", file], "client"
    if up.program:
        command, marker = [*up.program, file], up.marker
    done = subprocess.run(
        command, env=environment(subject, marker), check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{up.marker}, {load.title}: the load failed")
    result: Result = json.loads(done.stdout)
    return result


def write(file: Path, record: Any) -> Path:
    """A record for a child process."""
    file.write_text(json.dumps(record), encoding="utf-8")
    return file


def ratio(values: Sequence[float], base: Sequence[float]) -> str:
    """Paired ratios: median [lowest to highest]."""
    ratios = [value / max(other, 1e-9) for value, other in zip(values, base, strict=True)]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}]"

# SPDX-License-Identifier: Apache-2.0
"""What a judge knows, in a file beside the journal: a controller that is started again goes on.

A new judge would bet anew, and spend the whole rate of false rollbacks again. The file is written
after each scrape, whole or not at all, and has the counters of that scrape: what happens until the
next one, by whichever controller, is one moment, longer than others, and none is bet on twice.
Times are kept as the seconds before the scrape: those without a controller count for nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tritonctl.host.files import write_atomically
from tritonctl.rollout.judge import Judge
from tritonctl.rollout.metrics import Counters, counters_of

EVIDENCE = "evidence.json"
_VERSION = 4
_LARGEST = 16 << 20  # bytes


def keep(folder: Path, judge: Judge, at: float, about: Mapping[str, Any]) -> None:
    """Write down what `judge` knows after the scrape of `at`. about: of the caller's own.

    Raises HostError, such as for a full disk.
    """
    record = {"version": _VERSION, "about": dict(about), "judge": _written(judge, at)}
    write_atomically(folder / EVIDENCE, json.dumps(record, separators=(",", ":")))


def restore(folder: Path, judge: Judge, at: float) -> Mapping[str, Any] | None:
    """Let a fresh judge, of the same settings, know it at `at`; returns `about`.

    None, and the judge is to be thrown away, where there is no such file or it does not fit.
    """
    file = folder / EVIDENCE
    try:
        if file.stat().st_size > _LARGEST:
            return None
        record = json.loads(file.read_bytes(), parse_constant=_refused)
        if record["version"] != _VERSION:
            return None
        _read(judge, record["judge"], at)
        about: dict[str, Any] = dict(record["about"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return about


def _refused(constant: str) -> float:
    raise ValueError(constant)


def _written(value: Any, at: float) -> Any:
    if isinstance(value, Counters):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _written(each, at) for name, each in value.items()}
    if not hasattr(value, "KEPT"):
        return value
    record = {name: _written(getattr(value, name), at) for name in value.KEPT}
    for name in getattr(value, "KEPT_TIMES", ()):
        time = getattr(value, name)
        record[name] = None if time is None else at - time
    return record


def _read(value: Any, record: Any, at: float) -> Any:
    """The record as `value` was: into it where it is one of the tests."""
    if isinstance(value, dict):
        if {*value} != {*record}:
            raise ValueError("other tests")
        return {name: _read(each, record[name], at) for name, each in value.items()}
    if not hasattr(value, "KEPT"):
        return _plain(value, record)
    for name in value.KEPT:
        kept = record[name]
        present = getattr(value, name)
        setattr(value, name, counters_of(kept) if name == "_last" else _read(present, kept, at))
    for name in getattr(value, "KEPT_TIMES", ()):
        before = record[name]
        setattr(value, name, None if before is None else at - max(0.0, _plain(0.0, before)))
    return value


def _plain(value: Any, record: Any) -> Any:
    """A number, or a list of numbers or lists, of the same kind as `value`."""
    if isinstance(value, list | tuple):
        if not isinstance(record, list):
            raise TypeError("no list")
        if value and len(value) != len(record):
            raise ValueError("other tests")
        return [_plain(value[0] if value else 0.0, each) for each in record]
    if isinstance(record, bool) or not isinstance(record, int | float) or not math.isfinite(record):
        raise TypeError("no number")
    return int(record) if isinstance(value, int) else float(record)

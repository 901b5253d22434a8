# SPDX-License-Identifier: Apache-2.0
"""The judge's state in a file next to the journal, for a restarted controller.

A fresh judge would start its bets again and spend the false-rollback rate a second time. The file
is written atomically after each scrape and holds its counters: the time until the next scrape, by
any controller, is one longer interval, so nothing is bet on twice. Times are stored as seconds
before the scrape, so time without a controller does not count.
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


def save(folder: Path, judge: Judge, at: float, about: Mapping[str, Any]) -> None:
    """Save the judge's state after the scrape of `at`; `about` is the caller's data.

    Raises HostError, for example for a full disk.
    """
    record = {"version": _VERSION, "about": dict(about), "judge": _serialized(judge, at)}
    write_atomically(folder / EVIDENCE, json.dumps(record, separators=(",", ":")))


def restore(folder: Path, judge: Judge, at: float) -> Mapping[str, Any] | None:
    """Restore the state into a fresh judge with the same settings at `at`; return `about`.

    None if the file is missing or does not fit: discard the judge then.
    """
    file = folder / EVIDENCE
    try:
        if file.stat().st_size > _LARGEST:
            return None
        record = json.loads(file.read_bytes(), parse_constant=_refused)
        if record["version"] != _VERSION:
            return None
        _restored(judge, record["judge"], at)
        about: dict[str, Any] = dict(record["about"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return about


def _refused(constant: str) -> float:
    raise ValueError(constant)


def _serialized(value: Any, at: float) -> Any:
    if isinstance(value, Counters):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _serialized(each, at) for name, each in value.items()}
    if not hasattr(value, "PERSISTED"):
        return value
    record = {name: _serialized(getattr(value, name), at) for name in value.PERSISTED}
    for name in getattr(value, "PERSISTED_TIMES", ()):
        time = getattr(value, name)
        record[name] = None if time is None else at - time
    return record


def _restored(value: Any, record: Any, at: float) -> Any:
    """Restore a record of the shape of `value`; a test is restored in place."""
    if isinstance(value, dict):
        if {*value} != {*record}:
            raise ValueError("other tests")
        return {name: _restored(each, record[name], at) for name, each in value.items()}
    if not hasattr(value, "PERSISTED"):
        return _restored_number(value, record)
    for name in value.PERSISTED:
        saved = record[name]
        current = getattr(value, name)
        setattr(
            value, name, counters_of(saved) if name == "_last" else _restored(current, saved, at)
        )
    for name in getattr(value, "PERSISTED_TIMES", ()):
        age = record[name]
        setattr(value, name, None if age is None else at - max(0.0, _restored_number(0.0, age)))
    return value


def _restored_number(value: Any, record: Any) -> Any:
    """Restore a number, or nested lists of numbers, of the same kind as `value`."""
    if isinstance(value, list | tuple):
        if not isinstance(record, list):
            raise TypeError("no list")
        if value and len(value) != len(record):
            raise ValueError("other tests")
        return [_restored_number(value[0] if value else 0.0, each) for each in record]
    if isinstance(record, bool) or not isinstance(record, int | float) or not math.isfinite(record):
        raise TypeError("no number")
    return int(record) if isinstance(value, int) else float(record)

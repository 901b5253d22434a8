# SPDX-License-Identifier: Apache-2.0
"""Reads Triton's log: why a model did not load, and the log's end."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path

from tritonctl.errors import ServerError

_TAIL_LINES = 20
# E1121 03:26:52.393215 6222 model_lifecycle.cc:642] "failed to load 'x' version 1: Internal: ..."
_FAILED = re.compile(r"""failed to load '(?P<model>[^']+)'(?: version \d+)?: (?P<reason>.*)""")
_IN_USE = re.compile(r"Socket '(?P<socket>[^']+)' already in use")


def tail(log: Path, lines: int = _TAIL_LINES) -> list[str]:
    """The last lines of a log; empty without a log."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except FileNotFoundError:
        return []


def keep_previous(log: Path) -> None:
    """Move the previous server's log aside."""
    if log.exists():
        os.replace(log, log.with_suffix(".previous.log"))


def load_failures(log: Path) -> dict[str, str]:
    """Why each model failed to load, in Triton's own words; the last reason given counts."""
    failures: dict[str, str] = {}
    for line in tail(log, lines=5000):
        match = _FAILED.search(line)
        if match:
            failures[match["model"]] = match["reason"].rstrip('"')
    return failures


def explain_failure(log: Path, problem: str) -> ServerError:
    """The error for a server that did not come up, built from its log."""
    lines = tail(log)
    failures = load_failures(log)
    if failures:
        reasons = "\n".join(f"model {name}: {reason}" for name, reason in failures.items())
        problem = f"{problem}\n{reasons}"
    taken = _IN_USE.search("\n".join(lines))
    if taken:
        problem = f"port of {taken['socket']} was taken while Triton started"
    return ServerError(
        problem, remedy=f"read the whole log: {log}", details="\n".join(lines) or "(empty log)"
    )

# SPDX-License-Identifier: Apache-2.0
"""Reads Triton's log: why a model did not load, and the log's end."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tritonctl.errors import ServerError

_TAIL_LINES = 20
# E1121 03:26:52.393215 6222 model_lifecycle.cc:642] "failed to load 'x' version 1: Internal: ..."
_FAILED = (
    re.compile(r"""failed to load '(?P<model>[^']+)'(?: version \d+)?: (?P<reason>.*)"""),
    # ... model_repository_manager.cc:1460] "Poll failed for model directory 'x': ..."
    re.compile(r"""Poll failed for model directory '(?P<model>[^']+)': (?P<reason>.*)"""),
    # ... model_repository_manager.cc:703] "Invalid argument: in ensemble x, ensemble tensor y: ..."
    re.compile(r"""(?P<reason>Invalid argument: in ensemble '?(?P<model>[^',]+)'?, .*)"""),
)
# ... model_repository_manager.cc:703] "Invalid argument: ensemble 'x' depends on 'y' which has no
_DEPENDS = re.compile("ensemble '([^']+)' depends on '[^']+' which has no loaded version")
_LOADING = re.compile(r"""loading: ([^"]+):\d+""")
_LOADED = re.compile("successfully loaded '([^']+)'")
_TABLE = ("|", "+-")  # of versions, options and the like, which Triton prints at every start
_IDLE = ("", "At:")  # lines of a reason that say nothing
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
    """Why each model failed to load, in Triton's own words; the last reason given counts.

    An ensemble whose step failed has that for its reason, and is not listed.
    """
    failures: dict[str, str] = {}
    for line in tail(log, lines=5000):
        for pattern in _FAILED:
            if match := pattern.search(line):
                failures[match["model"]] = match["reason"].rstrip().removesuffix('"')
    return failures


def waiting_ensembles(log: Path) -> set[str]:
    """The ensembles that are not served because a step of theirs is not."""
    return set(_DEPENDS.findall("\n".join(tail(log, lines=5000))))


def still_loading(log: Path) -> list[str]:
    """The models whose loading neither ended nor failed."""
    text = "\n".join(tail(log, lines=5000))
    ended = {*_LOADED.findall(text), *load_failures(log)}
    return sorted(set(_LOADING.findall(text)) - ended)


def explain_failure(
    log: Path,
    problem: str,
    owners: Mapping[str, str] | None = None,
    late: Sequence[str] = (),
) -> ServerError:
    """The error for a server that did not come up, built from its log.

    owners: every model that was to be served, with the public model whose step it is. late: those
    that were not loaded in time.
    """
    lines = [line for line in tail(log, lines=5000) if not line.startswith(_TABLE)][-_TAIL_LINES:]
    failures, owners = load_failures(log), owners or {}
    taken = _IN_USE.search("\n".join(lines))
    if taken:
        problem = f"port of {taken['socket']} was taken while Triton started"
    bad = [*failures] or late
    if not bad or taken:
        return ServerError(
            problem,
            remedy=f"read the whole log: {log}",
            details="\n".join(lines) or "(empty log)",
        )
    reasons = [f"model {name}: {_readable(failures[name])}" for name in failures]
    reasons = reasons or [f"still loading: {', '.join(bad)}"]
    without = {owners.get(name, name) for name in (*bad, *waiting_ensembles(log))}
    others = sorted({*owners.values()} - without)
    remedy = f"the whole log is {log}"
    if others:
        serve = f"`tritonctl up --models {','.join(others)}`"
        remedy = f"correct it, or serve the others meanwhile: {serve}; {remedy}"
    return ServerError("\n".join([problem, *reasons]), remedy=remedy)


def _readable(reason: str) -> str:
    """Triton's reason in lines: of a traceback, the places in files, the innermost first."""
    lines = reason.replace("\\n", "\n").splitlines()
    return "\n".join(line for line in lines if line.strip() not in _IDLE and "<frozen " not in line)

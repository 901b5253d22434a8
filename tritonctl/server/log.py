# SPDX-License-Identifier: Apache-2.0
"""Reads Triton's log: why a model did not load, and the log's end."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

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
# I1125 16:22:03.404673 19099 model_lifecycle.cc:472] "loading: ...; or with --log-format ISO8601
_HEAD = re.compile(r"[IWEF]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\dT\d\d:")
_IDLE = ("", "At:")  # lines of a reason that say nothing
# What a Python backend of Triton dies of when a process that holds a lock in shared memory gets no
# core for some seconds: github.com/triton-inference-server/tensorrtllm_backend/issues/349.
_LOST_LOCK = "boost::interprocess::lock_exception"
_IN_USE = re.compile(r"Socket '(?P<socket>[^']+)' already in use")


def tail(log: Path, lines: int = _TAIL_LINES) -> list[str]:
    """The last lines of a log; empty without a log."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except FileNotFoundError:
        return []


def lost_lock(log: Path) -> bool:
    """Whether Triton died of a lock of its Python backend, which says nothing about the models."""
    return any(_LOST_LOCK in line for line in tail(log))


class LogReader:
    """Reads whole lines as they are added to a log that may be moved aside, cut off or replaced.

    `tritonctl up` moves the previous server's log aside (`keep_previous`), other tools rotate it.
    What was added to the old file before that is read first; then the new one from its beginning.
    """

    def __init__(self, log: Path) -> None:
        """Begin at the beginning of the log, which need not exist yet."""
        self._log = log
        self._file = self._opened()
        self._begun = b""

    def last_lines(self, count: int, wanted: Callable[[str], bool]) -> list[str]:
        """The last wanted lines up to the end; one that has no end yet comes with `new_lines`."""
        found: deque[str] = deque(maxlen=count)
        for ended in self._file or ():
            if not ended.endswith(b"\n"):
                self._begun = ended
            elif wanted(line := _decoded(ended[:-1])):
                found.append(line)
        return list(found)

    @property
    def unended(self) -> str:
        """The last line, as far as it was written without its end."""
        return _decoded(self._begun)

    def new_lines(self) -> list[str]:
        """The lines that were ended since the last call, without their ends."""
        lines = self._added()
        if self._was_replaced():
            lines += self._added()  # written between the two
            lines += [_decoded(self._begun)] if self._begun else []
            self._begun = b""
            if self._file is not None:
                self._file.close()
            self._file = self._opened()
            lines += self._added()
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _opened(self) -> BinaryIO | None:
        try:
            return self._log.open("rb")
        except FileNotFoundError:
            return None

    def _added(self) -> list[str]:
        if self._file is None:
            return []
        *whole, self._begun = (self._begun + self._file.read()).split(b"\n")
        return [_decoded(line) for line in whole]

    def _was_replaced(self) -> bool:
        """Whether the path now names another file, or this one was cut off."""
        try:
            now = self._log.stat()
        except FileNotFoundError:
            return False  # moved aside: its server still writes there, or the new one comes
        if self._file is None:
            return True
        mine = os.fstat(self._file.fileno())
        return (now.st_ino, now.st_dev) != (mine.st_ino, mine.st_dev) or (
            mine.st_size < self._file.tell()
        )


def _decoded(line: bytes) -> str:
    """A model may print anything."""
    return line.decode("utf-8", errors="replace")


class ModelLines:
    """Which lines of a log are about a model: those that name it or one of its steps.

    Lines without Triton's head (a traceback, what a model prints) belong to the line before them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        # `speller_engine_0_0` is an instance of speller_engine, and `speller_2` another model.
        among = "|".join(re.escape(name) for name in names)
        self._row = re.compile(rf"\|\s*(?:{among})\s*\|")
        self._named = re.compile(rf"(?<![\w.-])(?:{among})(?:_\d+_\d+)?(?![\w-])")
        self._inside = False

    def wanted(self, line: str) -> bool:
        """Whether the log's next line is one of them."""
        if line.startswith(_TABLE):  # of models, and of options whose paths may hold any name
            return self._row.match(line) is not None
        named = self._named.search(line) is not None
        if _HEAD.match(line) or named:
            self._inside = named
        return self._inside


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

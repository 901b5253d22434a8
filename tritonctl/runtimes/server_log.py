# SPDX-License-Identifier: Apache-2.0
"""Read Triton's log: load failures and the last lines."""

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
_LOAD_FAILURES = (
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
_TABLE = ("|", "+-")  # tables of versions and options, which Triton prints at every start
# I1125 16:22:03.404673 19099 model_lifecycle.cc:472] "loading: ...; or with --log-format ISO8601
_LINE_HEAD = re.compile(r"[IWEF]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\dT\d\d:")
_EMPTY_REASONS = ("", "At:")  # uninformative lines of a reason
# The Python backend dies with this exception if a process that holds a lock in shared memory gets
# no CPU for some seconds: github.com/triton-inference-server/tensorrtllm_backend/issues/349.
_LOST_LOCK = "boost::interprocess::lock_exception"
_IN_USE = re.compile(r"Socket '(?P<socket>[^']+)' already in use")


def tail(log: Path, lines: int = _TAIL_LINES) -> list[str]:
    """Return the last lines of a log; empty without a log."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except FileNotFoundError:
        return []


def has_lost_lock(log: Path) -> bool:
    """Whether Triton died of a lock of its Python backend: the models are not to blame."""
    return any(_LOST_LOCK in line for line in tail(log))


class LogReader:
    """Follow a log line by line, across renames, truncation and replacement.

    `tritonctl up` renames the previous server's log (`archive_log`), other tools rotate it. The
    reader finishes the old file, then reads the new one from its start.
    """

    def __init__(self, log: Path) -> None:
        """Start at the beginning of the log, which need not exist yet."""
        self._log = log
        self._file = self._open_log()
        self._partial_line = b""

    def last_lines(self, count: int, is_relevant: Callable[[str], bool]) -> list[str]:
        """Return the last relevant lines; an unfinished line comes with `new_lines`."""
        lines: deque[str] = deque(maxlen=count)
        for raw_line in self._file or ():
            if not raw_line.endswith(b"\n"):
                self._partial_line = raw_line
            elif is_relevant(line := _decode(raw_line[:-1])):
                lines.append(line)
        return list(lines)

    @property
    def partial_line(self) -> str:
        """The unfinished last line."""
        return _decode(self._partial_line)

    def new_lines(self) -> list[str]:
        """Return the lines completed since the last call, without line breaks."""
        lines = self._read_lines()
        if self._was_replaced():
            lines += self._read_lines()  # written between the two calls
            lines += [_decode(self._partial_line)] if self._partial_line else []
            self._partial_line = b""
            if self._file is not None:
                self._file.close()
            self._file = self._open_log()
            lines += self._read_lines()
        return lines

    def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            self._file.close()

    def _open_log(self) -> BinaryIO | None:
        try:
            return self._log.open("rb")
        except FileNotFoundError:
            return None

    def _read_lines(self) -> list[str]:
        if self._file is None:
            return []
        *complete_lines, self._partial_line = (self._partial_line + self._file.read()).split(b"\n")
        return [_decode(line) for line in complete_lines]

    def _was_replaced(self) -> bool:
        """Whether the path now names another file, or the open file was truncated."""
        try:
            current = self._log.stat()
        except FileNotFoundError:
            return False  # renamed: its server still writes to it, or the new log is not there yet
        if self._file is None:
            return True
        opened = os.fstat(self._file.fileno())
        return (current.st_ino, current.st_dev) != (opened.st_ino, opened.st_dev) or (
            opened.st_size < self._file.tell()
        )


def _decode(line: bytes) -> str:
    """Decode a line; models may print invalid UTF-8."""
    return line.decode("utf-8", errors="replace")


class ModelLineFilter:
    """Select the log lines that mention a model or one of its steps.

    Lines without Triton's head (tracebacks, output of models) belong to the previous line.
    """

    def __init__(self, names: Iterable[str]) -> None:
        # `speller_engine_0_0` is an instance of speller_engine, and `speller_2` another model.
        alternatives = "|".join(re.escape(name) for name in names)
        self._row = re.compile(rf"\|\s*(?:{alternatives})\s*\|")
        self._mention = re.compile(rf"(?<![\w.-])(?:{alternatives})(?:_\d+_\d+)?(?![\w-])")
        self._in_entry = False

    def matches(self, line: str) -> bool:
        """Whether the next line of the log is about the model; call it for every line in order."""
        if line.startswith(_TABLE):  # also of options, whose paths may contain any name
            return self._row.match(line) is not None
        is_mentioned = self._mention.search(line) is not None
        if _LINE_HEAD.match(line) or is_mentioned:
            self._in_entry = is_mentioned
        return self._in_entry


def archive_log(log: Path) -> None:
    """Rename the previous server's log to `*.previous.log`."""
    if log.exists():
        os.replace(log, log.with_suffix(".previous.log"))


def load_failures(log: Path) -> dict[str, str]:
    """Return each failed model with Triton's last reason.

    Ensembles that only lack a failed step are left out.
    """
    failures: dict[str, str] = {}
    for line in tail(log, lines=5000):
        for pattern in _LOAD_FAILURES:
            if match := pattern.search(line):
                failures[match["model"]] = match["reason"].rstrip().removesuffix('"')
    return failures


def waiting_ensembles(log: Path) -> set[str]:
    """Return the ensembles that are not loaded because one of their steps is not."""
    return set(_DEPENDS.findall("\n".join(tail(log, lines=5000))))


def loading_models(log: Path) -> list[str]:
    """Return the models whose loading neither finished nor failed."""
    text = "\n".join(tail(log, lines=5000))
    finished = {*_LOADED.findall(text), *load_failures(log)}
    return sorted(set(_LOADING.findall(text)) - finished)


def explain_failure(
    log: Path,
    problem: str,
    owners: Mapping[str, str] | None = None,
    late_models: Sequence[str] = (),
) -> ServerError:
    """Build the error for a server that did not start, from its log.

    owners: every requested model with its public model. late_models: models that were not loaded
    in time.
    """
    lines = [line for line in tail(log, lines=5000) if not line.startswith(_TABLE)][-_TAIL_LINES:]
    failures, owners = load_failures(log), owners or {}
    port_conflict = _IN_USE.search("\n".join(lines))
    if port_conflict:
        problem = (
            f"port of {port_conflict['socket']} was taken by another process while Triton started"
        )
    failed_models = [*failures] or late_models
    if not failed_models or port_conflict:
        return ServerError(
            problem,
            remedy=f"read the full log: {log}",
            details="\n".join(lines) or "(empty log)",
        )
    reasons = [f"model {name}: {_readable_reason(failures[name])}" for name in failures]
    reasons = reasons or [f"still loading: {', '.join(failed_models)}"]
    unavailable = {owners.get(name, name) for name in (*failed_models, *waiting_ensembles(log))}
    loadable = sorted({*owners.values()} - unavailable)
    remedy = f"the full log is {log}"
    if loadable:
        serve = f"`tritonctl up --models {','.join(loadable)}`"
        remedy = f"fix it, or serve the other models for now: {serve}; {remedy}"
    return ServerError("\n".join([problem, *reasons]), remedy=remedy)


def _readable_reason(reason: str) -> str:
    """Split Triton's reason into lines; of a traceback, keep the frames in files."""
    lines = reason.replace("\\n", "\n").splitlines()
    return "\n".join(
        line for line in lines if line.strip() not in _EMPTY_REASONS and "<frozen " not in line
    )

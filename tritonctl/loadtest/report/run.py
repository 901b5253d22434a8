# SPDX-License-Identifier: Apache-2.0
"""What the report reads of a run's folder: whole runs, interrupted ones, ones cut mid-line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.loadtest.analysis.records import PLAN, PROGRESS, RECORDS, Record, read_lines
from tritonctl.loadtest.analysis.summarise import read_run, summarise, summary_of
from tritonctl.loadtest.analysis.summary import Summary, read_summary, write_summary
from tritonctl.loadtest.run.folder import RUNS

MICROSECONDS = 1e6
MILLISECOND = 1e3  # in microseconds
FAILED = ("error", "timeout", "abandoned")


@dataclass(frozen=True)
class Request:
    """A record with its durations; response times run from the planned time, service times not."""

    record: Record

    @property
    def planned_s(self) -> float:
        """When it was due, in seconds since the run's start."""
        return self.record.planned / MICROSECONDS

    @property
    def sent_s(self) -> float:
        """When it was sent."""
        return self.record.sent / MICROSECONDS

    @property
    def end_s(self) -> float:
        """When its last response or its error came."""
        return self.record.end / MICROSECONDS

    @property
    def ttft_ms(self) -> float | None:
        """Planned time to first token."""
        return _between(self.record.planned, self.record.at[0]) if self.record.at else None

    @property
    def service_ttft_ms(self) -> float | None:
        """Sent to first token."""
        return _between(self.record.sent, self.record.at[0]) if self.record.at else None

    @property
    def e2e_ms(self) -> float:
        """Planned time to end."""
        return _between(self.record.planned, self.record.end)

    @property
    def service_e2e_ms(self) -> float:
        """Sent to end."""
        return _between(self.record.sent, self.record.end)

    @property
    def send_lag_ms(self) -> float:
        """How late the generator sent it."""
        return _between(self.record.planned, self.record.sent)

    @property
    def tokens(self) -> tuple[int, ...]:
        """How many tokens each response carried."""
        return self.record.tokens or (1,) * len(self.record.at)

    @property
    def longest_gap_ms(self) -> float | None:
        """The longest silence between two responses."""
        return max((_between(a, b) for a, b in pairwise(self.record.at)), default=None)

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of a token after the first: (last - first) / (tokens - 1)."""
        after = sum(self.tokens) - 1
        return _between(self.record.at[0], self.record.at[-1]) / after if after > 0 else None


def _between(earlier: int, later: int) -> float:
    return (later - earlier) / MILLISECOND


@dataclass(frozen=True)
class Run:
    """The files of a run's folder."""

    folder: Path
    summary: Summary
    plan: Mapping[str, Any]
    facts: Mapping[str, Any]
    requests: Sequence[Request]
    progress: Sequence[Mapping[str, Any]]
    server: Sequence[Mapping[str, Any]]

    @cached_property
    def streams(self) -> bool:
        """Whether answers came in pieces, so that tokens and gaps mean something."""
        return any(request.record.at for request in self.requests)

    @cached_property
    def seconds(self) -> int:
        """Whole seconds that the run took, with its cool-down."""
        return int(max((request.end_s for request in self.requests), default=0.0)) + 1


def load_run(folder: Path) -> Run:
    """Read a run's folder. Raises UsageError where it is none, ConfigurationError."""
    if not (folder / PLAN).is_file():
        raise UsageError(
            f"{folder} is not a load test: it has no {PLAN}",
            remedy="name a folder of .tritonctl/loadtests/; `tritonctl loadtest run` makes one",
        )
    read = read_run(folder)
    return Run(
        folder=folder,
        # A killed run has no summary: then that of what it left.
        summary=_stored_summary(folder) or summary_of(read),
        plan=read.plan,
        facts=read.facts,
        requests=[Request(record) for record in read.records],
        progress=[line for line in read_lines(folder / PROGRESS) if "t" in line],
        server=read.server,
    )


def _stored_summary(folder: Path) -> Summary | None:
    """The summary as it was stored; None where it is missing, damaged, or of another version."""
    with suppress(ConfigurationError):
        return read_summary(folder)
    return None


def restore_summary(folder: Path) -> bool:
    """Write the summary of a run that has ended without one; whether that was needed.

    Raises ConfigurationError.
    """
    # Each worker has its own file until the run has ended.
    if _stored_summary(folder) or not (folder / RECORDS).is_file():
        return False
    write_summary(folder, summarise(folder))
    return True


def find_run(name: str | None, state: Callable[[], Path]) -> Path:
    """The folder that `name` means: a path, a run of the project, or (None) its last run.

    `state` gives the project's .tritonctl folder, asked only where it is needed. Raises UsageError.
    """
    if name is not None and Path(name).is_dir():
        return Path(name)
    parent = state() / RUNS
    runs = sorted(plan.parent for plan in parent.glob(f"*/{PLAN}"))
    if name is None and runs:
        return max(runs, key=lambda folder: (folder / PLAN).stat().st_mtime)
    matching = [folder for folder in runs if name and folder.name.startswith(name)]
    if len(matching) == 1 or (matching and matching[0].name == name):
        return matching[0]
    raise UsageError(
        _no_run(name, parent, matching),
        remedy=f"name one of {parent}, or make one: `tritonctl loadtest run`",
    )


def _no_run(name: str | None, parent: Path, matching: Sequence[Path]) -> str:
    if name is None:
        return f"no load test in {parent} yet"
    if matching:
        return f"`{name}` is ambiguous: {', '.join(folder.name for folder in matching)}"
    return f"unknown load test `{name}`: not a folder, and no name in {parent} begins with it"

# SPDX-License-Identifier: Apache-2.0
"""Read a run's folder for the report: complete, interrupted or truncated runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.loadtest.analysis.counters import reload_times
from tritonctl.loadtest.analysis.records import PLAN, PROGRESS, RECORDS, LoadRecord, read_lines
from tritonctl.loadtest.analysis.summarise import read_run, summarise, summarise_run
from tritonctl.loadtest.analysis.summary import Summary, read_summary, write_summary
from tritonctl.loadtest.run.folder import RUNS

MICROSECONDS = 1e6
MILLISECOND = 1e3  # in microseconds
FAILED = ("error", "timeout", "abandoned")


@dataclass(frozen=True)
class TimedRequest:
    """A record with its durations.

    Response times run from the planned time, service times from the send.
    """

    record: LoadRecord

    @property
    def planned_s(self) -> float:
        """The planned time in seconds since the run's start."""
        return self.record.planned / MICROSECONDS

    @property
    def sent_s(self) -> float:
        """The time of the send."""
        return self.record.sent / MICROSECONDS

    @property
    def end_s(self) -> float:
        """The time of the last response or the error."""
        return self.record.end / MICROSECONDS

    @property
    def ttft_ms(self) -> float | None:
        """The time from the planned time to the first token; None without tokens."""
        return _elapsed_ms(self.record.planned, self.record.at[0]) if self.record.at else None

    @property
    def service_ttft_ms(self) -> float | None:
        """The time from the send to the first token; None without tokens."""
        return _elapsed_ms(self.record.sent, self.record.at[0]) if self.record.at else None

    @property
    def e2e_ms(self) -> float:
        """The time from the planned time to the end."""
        return _elapsed_ms(self.record.planned, self.record.end)

    @property
    def service_e2e_ms(self) -> float:
        """The time from the send to the end."""
        return _elapsed_ms(self.record.sent, self.record.end)

    @property
    def send_lag_ms(self) -> float:
        """The send minus the planned time."""
        return _elapsed_ms(self.record.planned, self.record.sent)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The number of tokens in each response."""
        return self.record.tokens or (1,) * len(self.record.at)

    @property
    def max_gap_ms(self) -> float | None:
        """The longest gap between two responses; None with fewer than two."""
        return max((_elapsed_ms(a, b) for a, b in pairwise(self.record.at)), default=None)

    @property
    def tpot_ms(self) -> float | None:
        """The mean time per token after the first; None with fewer than two responses."""
        later_tokens = sum(self.tokens) - 1
        if len(self.record.at) < 2 or later_tokens <= 0:  # noqa: PLR2004
            return None
        return _elapsed_ms(self.record.at[0], self.record.at[-1]) / later_tokens


def _elapsed_ms(earlier: int, later: int) -> float:
    return (later - earlier) / MILLISECOND


@dataclass(frozen=True)
class ReportedRun:
    """The content of a run's folder, with its summary."""

    folder: Path
    summary: Summary
    plan: Mapping[str, Any]
    facts: Mapping[str, Any]
    requests: Sequence[TimedRequest]
    progress: Sequence[Mapping[str, Any]]
    server: Sequence[Mapping[str, Any]]

    @cached_property
    def is_streaming(self) -> bool:
        """Whether responses were streams, which have tokens and gaps."""
        return any(request.record.at for request in self.requests)

    @cached_property
    def reloads(self) -> list[tuple[float, float]]:
        """The spans (from, to) in seconds in which a model was loaded again."""
        models = dict.fromkeys(name for s in self.server for name in s.get("models") or {})
        spans = sorted(span for name in models for span in reload_times(self.server, name))
        merged: list[tuple[float, float]] = []
        for start, end in spans:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    @cached_property
    def seconds(self) -> int:
        """The run's length in whole seconds, including the cool-down."""
        return int(max((request.end_s for request in self.requests), default=0.0)) + 1


def load_run(folder: Path) -> ReportedRun:
    """Read a run's folder. Raises UsageError if it is not one, ConfigurationError."""
    if not (folder / PLAN).is_file():
        raise UsageError(
            f"{folder} is not a load test: it has no {PLAN}",
            remedy="name a folder in .tritonctl/loadtests/; `tritonctl loadtest run` creates one",
        )
    recorded = read_run(folder)
    return ReportedRun(
        folder=folder,
        # A killed run has no summary: summarise its records.
        summary=_stored_summary(folder) or summarise_run(recorded),
        plan=recorded.plan,
        facts=recorded.facts,
        requests=[TimedRequest(record) for record in recorded.records],
        progress=[line for line in read_lines(folder / PROGRESS) if "t" in line],
        server=recorded.server,
    )


def _stored_summary(folder: Path) -> Summary | None:
    """Return the stored summary; None if it is missing, damaged or from another version."""
    with suppress(ConfigurationError):
        return read_summary(folder)
    return None


def restore_summary(folder: Path) -> bool:
    """Write a finished run's missing summary; return whether it was missing.

    Raises ConfigurationError.
    """
    # The merged record file exists only after the run's end.
    if _stored_summary(folder) or not (folder / RECORDS).is_file():
        return False
    write_summary(folder, summarise(folder))
    return True


def find_run(name: str | None, state: Callable[[], Path]) -> Path:
    """Find a run's folder by path or name; None finds the project's last run.

    `state` returns the project's .tritonctl folder and runs only if needed. Raises UsageError.
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
        _no_run_problem(name, parent, matching),
        remedy=f"name a run in {parent}, or create one: `tritonctl loadtest run`",
    )


def _no_run_problem(name: str | None, parent: Path, matching: Sequence[Path]) -> str:
    if name is None:
        return f"no load test in {parent} yet"
    if matching:
        return f"`{name}` is ambiguous: {', '.join(folder.name for folder in matching)}"
    return f"unknown load test `{name}`: not a folder, and no name in {parent} starts with it"

# SPDX-License-Identifier: Apache-2.0
"""Carry out a load plan: run generators, sample the server, summarise the result.

A run may end early (Ctrl-C, a lost worker, a dead server, a full disk). Its folder then keeps the
records so far and their summary.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tritonctl.errors import HostError, TritonctlError
from tritonctl.host.files import as_host_error
from tritonctl.host.resources import usable_cores
from tritonctl.loadtest.analysis.records import FACTS, PLAN, PROGRESS
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.analysis.summary import Summary, write_summary
from tritonctl.loadtest.run.environment import generator_facts, generator_program, generator_python
from tritonctl.loadtest.run.folder import JsonLinesWriter, merge_records, write_json
from tritonctl.loadtest.run.live import (
    LiveFigures,
    LiveMerger,
    LoadBoard,
    ShowFigures,
    engine_figures,
)
from tritonctl.loadtest.run.plan import describe_load, expected_seconds
from tritonctl.loadtest.run.sampling import MetricsReader, ServerSampler
from tritonctl.loadtest.run.workers import GeneratorWorkers, InterruptCounter

_POLL_SECONDS = 0.2
_FIGURES_SECONDS = 1.0
# Workers start together once the slowest is ready; times of an idle machine.
_LEAD_SECONDS = {"asyncio": 1.5, "locust": 4.0}
_LEAD_PER_WORKER_SECONDS, _MAX_LOAD_FACTOR = 0.5, 5.0
# A stopped run waits this long for responses. tritonserver 2.51 does not always survive many
# simultaneous cancels (decision 7), so most streams may finish.
_DRAIN_SECONDS = 8.0
_SILENCE_SECONDS = 60.0

StopCondition = Callable[[LiveFigures], str | None]


@dataclass(frozen=True)
class LoadJob:
    """A load plan with its folder, generators and server."""

    plan: dict[str, Any]
    folder: Path
    workers: int = 1
    engine: str = "asyncio"
    metrics: MetricsReader | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    shm_prefix: str | None = None  # of an embedded server on this machine: samples CPU and memory

    @property
    def models(self) -> list[str]:
        """The ensemble's steps and the model itself."""
        return [*self.facts.get("ensemble", ()), self.plan["model"]]


@dataclass(frozen=True)
class LoadRun:
    """A finished run."""

    folder: Path
    summary: Summary
    stop_reason: str | None = None  # from the stop condition
    interrupted: bool = False  # by the user


def run_load(job: LoadJob, progress: LoadBoard, *, stop: StopCondition | None = None) -> LoadRun:
    """Run a load test to its end and summarise it.

    `stop` runs each second; returning a reason ends the run early. So does SIGINT. Both keep the
    records. Raises ConfigurationError for a refused plan, ServerError when endpoint or model is
    missing, HostError when nothing could be run or stored.
    """
    python = generator_python(progress)
    facts = job.facts | {
        "generator": generator_facts(job.engine, python),
        "workers": job.workers,
        "started_at": _iso_time(time.time()),
    }
    run = _ActiveRun(job, facts, stop)
    plan = ("--plan", str(job.folder / PLAN), "--output", str(job.folder))
    run.run_generators([str(python), generator_program(job.engine), *plan], progress)
    return run.collect_result(progress)


class _ActiveRun:
    """The state of a run in progress."""

    def __init__(self, job: LoadJob, facts: dict[str, Any], stop: StopCondition | None) -> None:
        self._job = job
        self._facts = facts
        self._stop_condition = stop
        self._workers = GeneratorWorkers()
        self._interrupts = InterruptCounter()
        self._forwarded_interrupts = 0
        self._merger = LiveMerger(expected_seconds(job.plan))
        self._lines = JsonLinesWriter(job.folder / PROGRESS)
        self._sampler = ServerSampler(job.folder, job.models, job.metrics, job.shm_prefix)
        self._last_line_at = self._shown_at = time.monotonic()
        self._stop_reason: str | None = None
        self._stopped_at = 0.0

    def run_generators(self, command: list[str], progress: LoadBoard) -> None:
        """Start the generators and wait until all have ended."""
        started_at = self._write_inputs()
        scenario = self._facts.get("scenario") or self._job.plan["model"]
        title = f"{scenario}: {describe_load(self._job.plan)}"
        self._sampler.start()
        try:
            with self._interrupts.capture_signals(), progress.watch_load(title) as show:
                if started_at is not None:
                    self._sampler.mark_run_start(started_at)
                for number in range(self._job.workers):
                    self._workers.start(command, self._job.folder, number, self._job.workers)
                while self._workers.is_running:
                    self._poll_workers(show)
        finally:
            self._workers.terminate()
            self._sampler.close()
            self._lines.close()
        if not any(worker.has_started for worker in self._workers.members):
            self._raise_start_error()

    def _write_inputs(self) -> float | None:
        """Write plan and facts; return the start time, or None to start as soon as possible."""
        started_at = None
        if self._job.workers > 1:
            # A busy machine needs longer until every worker is ready.
            lead = _LEAD_SECONDS[self._job.engine] + _LEAD_PER_WORKER_SECONDS * self._job.workers
            load = (os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0) / usable_cores()
            started_at = time.time() + lead * min(max(1.0, load), _MAX_LOAD_FACTOR)
        write_json(self._job.folder / PLAN, self._job.plan | {"started_at": started_at})
        write_json(self._job.folder / FACTS, self._facts)
        return started_at

    def _poll_workers(self, show: ShowFigures) -> None:
        """Read worker output for a fifth of a second and act on it."""
        for record, line in self._workers.read_progress(_POLL_SECONDS):
            self._last_line_at = time.monotonic()
            if "t" in record and self._sampler.started_at is None:
                self._sampler.mark_run_start(time.time() - float(record["t"]))
            self._lines.write(line)
            self._merger.add(record)
        self._forward_interrupts()
        if time.monotonic() - self._shown_at >= _FIGURES_SECONDS:
            self._shown_at = time.monotonic()
            self._update_figures(show)
        if time.monotonic() - self._last_line_at > _SILENCE_SECONDS:
            self._workers.terminate()

    def _forward_interrupts(self) -> None:
        while self._forwarded_interrupts < self._interrupts.count:
            self._forwarded_interrupts += 1
            self._workers.interrupt()
        if self._stop_reason and time.monotonic() - self._stopped_at > _DRAIN_SECONDS:
            self._stopped_at = float("inf")
            self._workers.interrupt()

    def _update_figures(self, show: ShowFigures) -> None:
        models = self._job.models
        model = next((name for name in models if name.endswith("_engine")), models[-1])
        figures = self._merger.figures(engine_figures(self._sampler.recent, model))
        if figures is None:
            return
        show(figures)
        if self._lines.error is not None and self._stop_reason is None:
            self._stop_early(f"{self._lines.error.strerror} while writing {self._job.folder}")
        elif self._stop_condition is not None and self._stop_reason is None:
            reason = self._stop_condition(figures)
            if reason is not None:
                self._stop_early(reason)

    def _stop_early(self, reason: str) -> None:
        self._stop_reason, self._stopped_at = reason, time.monotonic()
        self._workers.interrupt()

    def _raise_start_error(self) -> None:
        """Remove the empty run's folder and raise the reason why nothing was sent."""
        if self._interrupts.count:
            shutil.rmtree(self._job.folder, ignore_errors=True)
            raise KeyboardInterrupt
        error = self._workers.members[0].start_error()
        if type(error) is not HostError:
            shutil.rmtree(self._job.folder, ignore_errors=True)
        raise error

    def collect_result(self, progress: LoadBoard) -> LoadRun:
        """Merge the records, write the summary and return the run."""
        folder, workers = self._job.folder, self._workers.members
        lost = [worker.number for worker in workers if worker.is_lost]
        for worker in workers:
            if worker.is_lost:
                progress.note(
                    f"worker {worker.number} was lost (status {worker.process.returncode}); its "
                    f"records so far are kept, see {worker.log}"
                )
        end_facts: dict[str, Any] = {"lost_workers": lost, "stopped": self._stop_reason}
        if self._sampler.started_at is not None:
            end_facts["started_at"] = _iso_time(self._sampler.started_at)
        with progress.step("Summarising"), _hint_at_records(folder, progress):
            write_json(folder / FACTS, self._facts | end_facts)
            merge_records(folder, self._job.workers)
            summary = summarise(folder)
            write_summary(folder, summary)
        return LoadRun(folder, summary, self._stop_reason, bool(self._interrupts.count))


def _iso_time(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds")


@contextmanager
def _hint_at_records(folder: Path, progress: LoadBoard) -> Iterator[None]:
    """On any failure, tell the user how to continue from the records."""
    hint = f"the records are kept: `tritonctl loadtest report {folder}`"
    try:
        with as_host_error(folder):
            yield
    except TritonctlError as error:
        error.remedy += f"; {hint}"
        raise
    except KeyboardInterrupt:
        progress.note(hint)
        raise

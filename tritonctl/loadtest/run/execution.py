# SPDX-License-Identifier: Apache-2.0
"""Carries out a load plan: runs generators, samples the server, summarises the result.

Whatever ends a run early (Ctrl-C, a lost worker, a server that dies, a full disk), the folder keeps
what was measured until then, and a summary of it.
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
from tritonctl.host.files import explained
from tritonctl.host.resources import usable_cores
from tritonctl.loadtest.analysis.records import FACTS, PLAN, PROGRESS
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.analysis.summary import Summary, write_summary
from tritonctl.loadtest.run.environment import generator_facts, generator_program, generator_python
from tritonctl.loadtest.run.folder import Lines, merge_records, write_json
from tritonctl.loadtest.run.live import LiveFigures, LiveMerger, LoadBoard, Show, engine_figures
from tritonctl.loadtest.run.plan import described, expected_seconds
from tritonctl.loadtest.run.sampling import Scrape, ServerSampler
from tritonctl.loadtest.run.workers import Interruptions, Workers

_POLL_SECONDS = 0.2
_FIGURES_SECONDS = 1.0
# All workers begin together once the slowest is ready; the times are those of an idle machine.
_LEAD_SECONDS = {"asyncio": 1.5, "locust": 4.0}
_LEAD_PER_WORKER_SECONDS, _MOST_LOADED = 0.5, 5.0
# A stopped run waits for answers only this long. tritonserver 2.51 does not always survive many
# streams that are cancelled at once (decision 7), so most of them may finish.
_DRAIN_SECONDS = 8.0
_SILENCE_SECONDS = 60.0

Stop = Callable[[LiveFigures], str | None]


@dataclass(frozen=True)
class LoadJob:
    """What to run. `shm_prefix`: of an embedded server of this machine, for its CPU and memory."""

    plan: dict[str, Any]
    folder: Path
    workers: int = 1
    engine: str = "asyncio"
    metrics: Scrape | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    shm_prefix: str | None = None

    @property
    def models(self) -> list[str]:
        """The models that take part: the ensemble's steps, and the model itself."""
        return [*self.facts.get("ensemble", ()), self.plan["model"]]


@dataclass(frozen=True)
class LoadRun:
    """A finished run. `stopped`: the reason of `stop`; `interrupted`: the user stopped it."""

    folder: Path
    summary: Summary
    stopped: str | None = None
    interrupted: bool = False


def run_load(job: LoadJob, progress: LoadBoard, *, stop: Stop | None = None) -> LoadRun:
    """Run a load test to its end and summarise it.

    `stop` is called each second; a reason that it returns ends the run early. So does SIGINT; what
    was measured is kept. Raises ConfigurationError for a refused plan, ServerError without the
    endpoint or the model, HostError when nothing could be run or stored.
    """
    python = generator_python(progress)
    facts = job.facts | {
        "generator": generator_facts(job.engine, python),
        "workers": job.workers,
        "started_at": _iso(time.time()),
    }
    run = _Run(job, facts, stop)
    plan = ("--plan", str(job.folder / PLAN), "--output", str(job.folder))
    run.carry_out([str(python), generator_program(job.engine), *plan], progress)
    return run.result(progress)


class _Run:
    """A run under way."""

    def __init__(self, job: LoadJob, facts: dict[str, Any], stop: Stop | None) -> None:
        self._job = job
        self._facts = facts
        self._stop = stop
        self._workers = Workers()
        self._interruptions = Interruptions()
        self._passed_on = 0
        self._merger = LiveMerger(expected_seconds(job.plan))
        self._lines = Lines(job.folder / PROGRESS)
        self._sampler = ServerSampler(job.folder, job.models, job.metrics, job.shm_prefix)
        self._last_line_at = self._shown_at = time.monotonic()
        self._stopped: str | None = None
        self._stopped_at = 0.0

    def carry_out(self, command: list[str], progress: LoadBoard) -> None:
        """From the first process to the end of the last."""
        started_at = self._prepare()
        scenario = self._facts.get("scenario") or self._job.plan["model"]
        title = f"{scenario}: {described(self._job.plan)}"
        self._sampler.start()
        try:
            with self._interruptions.counted(), progress.watch_load(title) as show:
                if started_at is not None:
                    self._sampler.run_started(started_at)
                for number in range(self._job.workers):
                    self._workers.start(command, self._job.folder, number, self._job.workers)
                while self._workers.running:
                    self._turn(show)
        finally:
            self._workers.end()
            self._sampler.close()
            self._lines.close()
        if not any(worker.began for worker in self._workers.all):
            self._refuse()

    def _prepare(self) -> float | None:
        """Write plan and facts; return when the run begins, or None: as soon as it is ready."""
        started_at = None
        if self._job.workers > 1:
            # Until every worker is ready, which takes longer on a busy machine.
            lead = _LEAD_SECONDS[self._job.engine] + _LEAD_PER_WORKER_SECONDS * self._job.workers
            load = (os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0) / usable_cores()
            started_at = time.time() + lead * min(max(1.0, load), _MOST_LOADED)
        write_json(self._job.folder / PLAN, self._job.plan | {"started_at": started_at})
        write_json(self._job.folder / FACTS, self._facts)
        return started_at

    def _turn(self, show: Show) -> None:
        """Listen for a fifth of a second and act on what the workers report."""
        for record, line in self._workers.hear(_POLL_SECONDS):
            self._last_line_at = time.monotonic()
            if "t" in record and self._sampler.started_at is None:
                self._sampler.run_started(time.time() - float(record["t"]))
            self._lines.write(line)
            self._merger.add(record)
        self._pass_on_interruptions()
        if time.monotonic() - self._shown_at >= _FIGURES_SECONDS:
            self._shown_at = time.monotonic()
            self._look(show)
        if time.monotonic() - self._last_line_at > _SILENCE_SECONDS:
            self._workers.end()

    def _pass_on_interruptions(self) -> None:
        while self._passed_on < self._interruptions.count:
            self._passed_on += 1
            self._workers.interrupt()
        if self._stopped and time.monotonic() - self._stopped_at > _DRAIN_SECONDS:
            self._stopped_at = float("inf")
            self._workers.interrupt()

    def _look(self, show: Show) -> None:
        models = self._job.models
        model = next((name for name in models if name.endswith("_engine")), models[-1])
        figures = self._merger.figures(engine_figures(self._sampler.recent, model))
        if figures is None:
            return
        show(figures)
        if self._lines.error is not None and self._stopped is None:
            self._end_early(f"{self._lines.error.strerror} while writing {self._job.folder}")
        elif self._stop is not None and self._stopped is None:
            reason = self._stop(figures)
            if reason is not None:
                self._end_early(reason)

    def _end_early(self, reason: str) -> None:
        self._stopped, self._stopped_at = reason, time.monotonic()
        self._workers.interrupt()

    def _refuse(self) -> None:
        """Raise the reason why nothing was sent, and remove the empty run's folder."""
        if self._interruptions.count:
            shutil.rmtree(self._job.folder, ignore_errors=True)
            raise KeyboardInterrupt
        refusal = self._workers.all[0].refusal()
        if type(refusal) is not HostError:
            shutil.rmtree(self._job.folder, ignore_errors=True)
        raise refusal

    def result(self, progress: LoadBoard) -> LoadRun:
        """What was measured, merged and summarised."""
        folder, workers = self._job.folder, self._workers.all
        lost = [worker.number for worker in workers if worker.lost]
        for worker in workers:
            if worker.lost:
                progress.note(
                    f"worker {worker.number} was lost (status {worker.process.returncode}); what "
                    f"it had measured is kept, see {worker.log}"
                )
        ended: dict[str, Any] = {"lost_workers": lost, "stopped": self._stopped}
        if self._sampler.started_at is not None:
            ended["started_at"] = _iso(self._sampler.started_at)
        with progress.step("Summarising"), _records_are_kept(folder, progress):
            write_json(folder / FACTS, self._facts | ended)
            merge_records(folder, self._job.workers)
            summary = summarise(folder)
            write_summary(folder, summary)
        return LoadRun(folder, summary, self._stopped, bool(self._interruptions.count))


def _iso(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds")


@contextmanager
def _records_are_kept(folder: Path, progress: LoadBoard) -> Iterator[None]:
    """Whatever fails here, tell the user how to go on from the records."""
    kept = f"what was measured is kept: `tritonctl loadtest report {folder}`"
    try:
        with explained(folder):
            yield
    except TritonctlError as error:
        error.remedy += f"; {kept}"
        raise
    except KeyboardInterrupt:
        progress.note(kept)
        raise

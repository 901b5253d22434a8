# SPDX-License-Identifier: Apache-2.0
"""The master part of a Locust process: distribute the plan, start all workers together, collect
their results and detect lost workers.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust.runners import MasterRunner

from loadlib.locust_options import plan_content, share_of
from loadlib.locust_results import RunResults
from loadlib.locust_worker import LOST, PROGRESS, READY, RECORDS, REFUSED, START, STOP
from loadlib.plan import parse_plan
from loadlib.refusal import RunRefusedError
from loadlib.worker_share import INTERRUPTED

LOG = logging.getLogger("locust.tritonctl")
_INTERRUPTED = 130  # before anything was sent; a later interrupt ends with 0
_LEAD_SECONDS = 0.5
_POLL_SECONDS = 0.5
_MARGIN_SECONDS = 10.0
_MISSING = "missing"  # Locust's state of a worker without heartbeats for three seconds
_LOST_AFTER_SECONDS = 10.0


class LocustMaster:
    """Leads the runs of a Locust master, or of a process without one."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._options = environment.parsed_options
        self._runner = environment.runner
        self._results = RunResults(None)
        self._started_at: float | None = None
        self._stop_timeout = 0.0
        # Worker numbers: not yet ready, and (with client ids) not yet finished.
        self._unready: set[int] = set()
        self._unfinished: dict[int, str] = {}
        self._missing_since: dict[int, float] = {}
        self._lost: list[int] = []
        self._is_ending_early = False
        self._finished_event = Event()
        self._finished_event.set()
        events = environment.events
        events.test_start.add_listener(self._on_start)
        events.test_stopping.add_listener(self._on_stopping)
        events.quitting.add_listener(self._on_stopping)
        for message, listener in (
            (READY, self._on_ready),
            (RECORDS, self._on_records),
            (PROGRESS, self._on_progress),
            (LOST, self._on_lost),
            (REFUSED, self._on_refused),
        ):
            self._runner.register_message(message, listener)
        if self._options.headless:
            # Locust's SIGINT handler would interrupt any running greenlet.
            gevent.signal_handler(signal.SIGINT, self._interrupt)

    def _on_start(self, **_: Any) -> None:
        # Locust sends custom options to its workers.
        self._options.tritonctl_job = None
        try:
            content = plan_content(self._options, self._runner.target_user_count)
            numbers, workers = self._numbers()
            self._results = RunResults(Path(self._options.output) if self._options.output else None)
        except RunRefusedError as refusal:
            self._refuse(refusal)
            return
        plan = parse_plan(content)
        self._options.tritonctl_job = {"plan": content, "numbers": numbers, "workers": workers}
        self._unfinished = {number: client_id for client_id, number in numbers.items()}
        self._unready = set(self._unfinished)
        self._missing_since = {}
        self._lost = []
        self._is_ending_early = False
        self._started_at = plan.started_at
        self._stop_timeout = plan.cool_down_seconds + _MARGIN_SECONDS
        self._finished_event.clear()
        gevent.spawn(self._watch)

    def _numbers(self) -> tuple[dict[str, int], int]:
        """Return worker numbers by client id, and the number of workers. Raises RunRefusedError."""
        if not isinstance(self._runner, MasterRunner):
            worker, workers = share_of(self._options)
            return {self._runner.client_id: worker}, workers
        clients = self._runner.clients
        ids = [client.id for client in (*clients.ready, *clients.spawning, *clients.running)]
        return {client_id: number for number, client_id in enumerate(ids)}, len(ids)

    def _watch(self) -> None:
        """Wait until every worker has finished or is lost."""
        while self._unfinished:
            gevent.sleep(_POLL_SECONDS)
            if isinstance(self._runner, MasterRunner):
                self._find_lost_workers()
        if not self._finished_event.is_set():
            self._finished_event.set()
            self._finish()

    def _find_lost_workers(self) -> None:
        """Mark workers as lost after ten seconds; a busy machine delays heartbeats."""
        now = time.monotonic()
        for number, client_id in list(self._unfinished.items()):
            client = self._runner.clients.get(client_id)
            if client is not None and client.state != _MISSING:
                self._missing_since.pop(number, None)
            elif now - self._missing_since.setdefault(number, now) >= _LOST_AFTER_SECONDS:
                self._mark_lost(number)

    def _mark_lost(self, number: int) -> None:
        if self._unfinished.pop(number, None) is not None:
            self._lost.append(number)
            LOG.error("worker %d was lost; its records so far are kept", number)
            self._start_when_ready(number)

    def _start_when_ready(self, number: int) -> None:
        """Start all workers at the same time, once each is ready."""
        waited = bool(self._unready)
        self._unready.discard(number)
        if waited and not self._unready:
            start = self._started_at
            if len(self._unfinished) > 1:
                start = max(start or 0.0, time.time() + _LEAD_SECONDS)
            self._send_all(START, {"start": start})

    def _send_all(self, message: str, data: dict[str, Any]) -> None:
        for client_id in list(self._unfinished.values()):
            self._runner.send_message(message, data, client_id=client_id)

    def _stop(self, reason: str) -> None:
        self._send_all(STOP, {"stop": reason})

    def _interrupt(self) -> None:
        if not self._finished_event.is_set():
            self._stop(INTERRUPTED)
            return
        if self._environment.process_exit_code is None:
            self._environment.process_exit_code = _INTERRUPTED
        os.kill(os.getpid(), signal.SIGTERM)  # Locust shuts down on SIGTERM

    def _on_stopping(self, **_: Any) -> None:
        """Let requests in flight finish before Locust stops its workers."""
        if not self._finished_event.is_set():
            self._stop(INTERRUPTED)
            self._finished_event.wait(self._stop_timeout)

    def _on_ready(self, msg: Any, **_: Any) -> None:
        self._start_when_ready(msg.data["worker"])

    def _on_records(self, msg: Any, **_: Any) -> None:
        self._results.add_records(msg.data["worker"], msg.data["lines"])

    def _on_progress(self, msg: Any, **_: Any) -> None:
        line = msg.data["line"]
        self._results.add_progress(line)
        if self._results.end_reason and not self._is_ending_early:
            self._is_ending_early = True
            LOG.error("the run ends early: %s", self._results.end_reason)
            self._stop(self._results.end_reason)
        if "finished" in line:
            self._unfinished.pop(msg.data["worker"], None)

    def _on_lost(self, msg: Any, **_: Any) -> None:
        self._mark_lost(msg.data["worker"])

    def _on_refused(self, msg: Any, **_: Any) -> None:
        self._unfinished.pop(msg.data["worker"], None)
        if not self._finished_event.is_set():
            self._finished_event.set()
            self._stop(INTERRUPTED)
            self._unfinished.clear()
            fields = {name: msg.data[name] for name in ("remedy", "exit_code")}
            self._refuse(RunRefusedError(msg.data["problem"], **fields))

    def _refuse(self, refusal: RunRefusedError) -> None:
        """Print the refusal as a JSON line; end the process, or the run with a web UI."""
        sys.stderr.write(json.dumps(refusal.to_record()) + "\n")
        sys.stderr.flush()
        LOG.error("%s; %s", refusal, refusal.remedy)
        self._environment.process_exit_code = refusal.exit_code
        self._leave()

    def _finish(self) -> None:
        """Log the merged percentiles; end the process, or the run with a web UI."""
        self._results.close()
        for row in self._results.table():
            LOG.info(row)
        if self._lost:
            LOG.error("the run is not valid: it lost %d of its workers", len(self._lost))
            self._environment.process_exit_code = 1
        elif self._options.output:
            # The plan was carried out, even if requests failed.
            self._environment.process_exit_code = 0
        self._leave()

    def _leave(self) -> None:
        """End the process if headless, else the run."""
        gevent.spawn(self._runner.quit if self._options.headless else self._runner.stop)

# SPDX-License-Identifier: Apache-2.0
"""One worker's share of a plan inside a Locust process, alone or one of several under a master."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event

from loadlib.arrivals import Closed
from loadlib.clock import US, Clock
from loadlib.heartbeat import Heartbeat
from loadlib.locust_engine import READABLE, Engine, Transport
from loadlib.locust_grpc import GrpcTransport
from loadlib.locust_http import HttpTransport
from loadlib.locust_options import plan_content, share_of
from loadlib.locust_sinks import FolderSink, MasterSink, Sink
from loadlib.locust_stats import Lines, LocustRecorder
from loadlib.plan import Plan, parse_plan
from loadlib.progress import Meter
from loadlib.refusal import Refusal
from loadlib.share import INTERRUPTED, Share
from loadlib.workload import Workload

REFUSED, STOP = "tritonctl_refused", "tritonctl_stop"
_INTERRUPTED = 130  # before anything was sent; later it ends as planned
LOG = logging.getLogger("locust.tritonctl")


def transport_of(plan: Plan) -> Transport:
    """The connection for the plan's protocol."""
    return HttpTransport(plan) if plan.protocol == "http" else GrpcTransport(plan)


class Generating:
    """A run under way. `over`: everything has been told to the sink."""

    def __init__(
        self, environment: Any, content: dict[str, Any], worker: int, workers: int, sink: Sink
    ) -> None:
        plan = parse_plan(content)
        share = Share.of(Workload(plan), worker, workers)
        self._transport = transport_of(plan)
        self._transport.prepare()
        self._worker = worker
        self._sink = sink
        self._lines = Lines()
        self._meter = Meter(worker, share.due if share.planned else None)
        text = plan.kind == "text"
        recorder = LocustRecorder(self._lines, self._meter, environment, worker=worker, text=text)
        self._clock = Clock(plan.started_at)
        self.engine = Engine(plan, share, self._transport, recorder, self._clock)
        self.open_loop = not isinstance(plan.arrivals, Closed)
        self.over = Event()

    def start(self) -> None:
        """Carry it out in greenlets of its own."""
        # The schedule lives as long as the run: collections need not look at it again.
        gc.collect()
        gc.freeze()
        gevent.spawn(self._run)

    def _run(self) -> None:
        reports = gevent.spawn(self._report)
        heart = Heartbeat(self._meter, self._clock)
        watcher = gevent.get_hub().loop.io(heart.fd, READABLE)
        watcher.start(heart.beat)
        try:
            self.engine.run()
        finally:
            watcher.close()
            heart.close()
            reports.kill()
            self._tell_records()
            now, engine = self._clock.now_us(), self.engine
            self._sink.progress(self._meter.last_line(now, engine.reason, engine.unsent))
            self._transport.close()
            self.over.set()

    def _report(self) -> None:
        """Each second: a line, and the records so far."""
        second = 1
        while True:
            gevent.sleep(max(0.0, second - self._clock.now_us() / US))
            second += 1
            self._tell_records()
            self._sink.progress(self._meter.line(self._clock.now_us()))

    def _tell_records(self) -> None:
        self._sink.records(self._worker, self._lines.take())
        if self._sink.trouble and not self.engine.stopped:
            LOG.error("the run ends early: %s", self._sink.trouble)
            self.engine.stop(self._sink.trouble)


class Worker:
    """Ties runs to the life of a Locust process that has users: its events call this."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.running: Generating | None = None
        events = environment.events
        events.test_start.add_listener(self._on_start)
        events.test_stopping.add_listener(self._on_stopping)
        events.quitting.add_listener(self._on_stopping)

    def session(self) -> bool:
        """Of a user: one session in a closed loop; whether the user is still needed."""
        running = self.running
        if running is None or running.over.is_set():
            return False
        if running.open_loop or running.engine.sending_over:
            running.over.wait()
            return False
        running.engine.user_session()
        return True

    def _begin(self) -> Generating:
        raise NotImplementedError

    def _refused(self, refusal: Refusal) -> None:
        raise NotImplementedError

    def _ended(self) -> None:
        raise NotImplementedError

    def _on_start(self, **_: Any) -> None:
        try:
            self.running = self._begin()
        except Refusal as refusal:
            self.running = None
            self._refused(refusal)
            return
        self.running.start()
        gevent.spawn(self._wait, self.running)

    def _wait(self, running: Generating) -> None:
        running.over.wait()
        self._ended()

    def _on_stopping(self, **_: Any) -> None:
        """Before Locust takes its users away: let what is in flight finish."""
        if self.running is not None and not self.running.over.is_set():
            self.running.engine.stop(INTERRUPTED)
            self.running.over.wait()


class Local(Worker):
    """A process that works alone, or beside others that it knows nothing of."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._sink: FolderSink | None = None
        self._options = environment.parsed_options
        if self._options.headless:
            # Locust's own SIGINT unwinds whatever greenlet happens to run.
            gevent.signal_handler(signal.SIGINT, self._interrupt)

    def _begin(self) -> Generating:
        options = self._options
        worker, workers = share_of(options)
        content = plan_content(options, self._environment.runner.target_user_count)
        self._sink = FolderSink(Path(options.output) if options.output else None)
        return Generating(self._environment, content, worker, workers, self._sink)

    def _refused(self, refusal: Refusal) -> None:
        refuse(self._environment, refusal)

    def _interrupt(self) -> None:
        if self.running is None:
            self._environment.process_exit_code = _INTERRUPTED
            os.kill(os.getpid(), signal.SIGTERM)  # Locust's own way out
        elif not self.running.over.is_set():
            self.running.engine.stop(INTERRUPTED)

    def _ended(self) -> None:
        if self._sink is not None and self.running is not None:
            finish(self._environment, self._sink, lost=0, faulty=self.running.engine.faulty)


class Remote(Worker):
    """A worker of a master, which sends the plan and takes what was measured."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        environment.runner.register_message(STOP, self._on_stop)

    def _begin(self) -> Generating:
        job = self._environment.parsed_options.tritonctl_job
        runner = self._environment.runner
        numbers = job["numbers"]
        if runner.client_id not in numbers:
            raise Refusal("this worker came after the run had begun", remedy="start a new run")
        worker = numbers[runner.client_id]
        sink = MasterSink(runner)
        return Generating(self._environment, job["plan"], worker, len(numbers), sink)

    def _refused(self, refusal: Refusal) -> None:
        told = {**refusal.to_record(), "exit_code": refusal.exit_code}
        self._environment.runner.send_message(REFUSED, told)

    def _on_stop(self, msg: Any, **_: Any) -> None:
        if self.running is not None and not self.running.over.is_set():
            self.running.engine.stop(msg.data["reason"])

    def _ended(self) -> None:
        pass  # the master decides when everybody goes


def refuse(environment: Any, refusal: Refusal) -> None:
    """Say why nothing is sent, as the contract has it; end the process, or only the run."""
    sys.stderr.write(json.dumps(refusal.to_record()) + "\n")
    sys.stderr.flush()
    LOG.error("%s; %s", refusal, refusal.remedy)
    environment.process_exit_code = refusal.exit_code
    leave(environment)


def finish(environment: Any, sink: FolderSink, lost: int, faulty: bool = False) -> None:
    """After the last answer: the merged percentiles; end the process, or only the run."""
    sink.close()
    for row in sink.table():
        LOG.info(row)
    options = environment.parsed_options
    if lost:
        LOG.error("the run is not valid: %d of its workers were lost", lost)
        environment.process_exit_code = 1
    elif faulty:
        environment.process_exit_code = 1  # what happened has been printed
    elif options.output:
        environment.process_exit_code = 0  # the plan was carried out, also if requests failed
    leave(environment)


def leave(environment: Any) -> None:
    """Headless, the process ends; with a web UI it waits for the next run."""
    runner = environment.runner
    gevent.spawn(runner.quit if environment.parsed_options.headless else runner.stop)

# SPDX-License-Identifier: Apache-2.0
"""Locust's master: hands the plan out, takes records and histograms in, notices who is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event

from loadlib.locust_options import plan_content
from loadlib.locust_sinks import PROGRESS, RECORDS, FolderSink
from loadlib.locust_worker import LOG, REFUSED, STOP, finish, refuse
from loadlib.plan import parse_plan
from loadlib.refusal import Refusal
from loadlib.share import INTERRUPTED

_LEAD_SECONDS = 1.5
_LOOK_SECONDS = 0.5
_MARGIN_SECONDS = 10.0
_MISSING = "missing"  # a worker that Locust has not heard of for some seconds


class Master:
    """Ties runs to the life of a master."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._runner = environment.runner
        self._sink: FolderSink | None = None
        self._patience = 0.0
        self._pending: dict[str, int] = {}
        self._lost: list[int] = []
        self._over = Event()
        self._over.set()
        events = environment.events
        events.test_start.add_listener(self._on_start)
        events.test_stopping.add_listener(self._on_stopping)
        events.quitting.add_listener(self._on_stopping)
        self._runner.register_message(RECORDS, self._on_records)
        self._runner.register_message(PROGRESS, self._on_progress)
        self._runner.register_message(REFUSED, self._on_refused)
        if environment.parsed_options.headless:
            gevent.signal_handler(signal.SIGINT, self._interrupt)

    def _on_start(self, **_: Any) -> None:
        options = self._environment.parsed_options
        try:
            content = plan_content(options, self._runner.target_user_count)
            plan = parse_plan(content)
        except Refusal as refusal:
            refuse(self._environment, refusal)
            return
        # All of them begin at the same moment, once each has its part.
        started_at = max(plan.started_at or 0.0, time.time() + _LEAD_SECONDS)
        content = content | {"started_at": started_at}
        clients = self._runner.clients
        ready = [*clients.ready, *clients.spawning, *clients.running]
        self._pending = {client.id: number for number, client in enumerate(ready)}
        # Locust sends its workers every option that is not its own.
        options.tritonctl_job = {"plan": content, "numbers": dict(self._pending)}
        self._sink = FolderSink(Path(options.output) if options.output else None)
        self._patience = plan.cool_down_seconds + _MARGIN_SECONDS
        self._lost = []
        self._over.clear()
        gevent.spawn(self._watch, self._sink)

    def _watch(self, sink: FolderSink) -> None:
        """Until every worker has told its end, or is lost."""
        while self._pending:
            gevent.sleep(_LOOK_SECONDS)
            self._look_for_lost()
            if sink.trouble:
                self._tell_all_to_stop(sink.trouble)
                sink.trouble = None
        self._over.set()
        finish(self._environment, sink, len(self._lost))

    def _look_for_lost(self) -> None:
        clients = self._runner.clients
        for client_id, number in list(self._pending.items()):
            client = clients.get(client_id)
            if client is None or client.state == _MISSING:
                del self._pending[client_id]
                self._lost.append(number)
                LOG.error("worker %d (%s) was lost; what it had told is kept", number, client_id)

    def _tell_all_to_stop(self, reason: str) -> None:
        for client_id in self._pending:
            self._runner.send_message(STOP, {"reason": reason}, client_id=client_id)

    def _interrupt(self) -> None:
        if self._over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)  # Locust's own way out
        else:
            self._tell_all_to_stop(INTERRUPTED)

    def _on_stopping(self, **_: Any) -> None:
        """Before Locust sends its workers away: let what is in flight finish."""
        if not self._over.is_set():
            self._tell_all_to_stop(INTERRUPTED)
            self._over.wait(self._patience)

    def _on_records(self, msg: Any, **_: Any) -> None:
        if self._sink is not None:
            self._sink.records(msg.data["worker"], msg.data["lines"])

    def _on_progress(self, msg: Any, **_: Any) -> None:
        if self._sink is not None:
            self._sink.progress(msg.data)
            if msg.data.get("finished"):
                self._pending.pop(msg.node_id, None)

    def _on_refused(self, msg: Any, **_: Any) -> None:
        if self._pending:
            told = msg.data
            self._pending = {}
            self._tell_all_to_stop(INTERRUPTED)
            refusal = Refusal(told["problem"], remedy=told["remedy"], exit_code=told["exit_code"])
            refuse(self._environment, refusal)

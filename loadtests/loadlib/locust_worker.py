# SPDX-License-Identifier: Apache-2.0
"""The part of a Locust process that has users: runs its share of the plan, reports to the master.

A process without a master plays both parts: Locust's local runner delivers messages to itself.
"""

from __future__ import annotations

from typing import Any

from gevent.event import Event

from loadlib.locust_generator_process import GeneratorProcess
from loadlib.locust_stats import fire_request
from loadlib.share import INTERRUPTED

# From a worker to the master, and from the master to a worker.
READY, RECORDS, PROGRESS = "tritonctl_ready", "tritonctl_records", "tritonctl_progress"
REFUSED, LOST = "tritonctl_refused", "tritonctl_lost"
START, STOP = "tritonctl_start", "tritonctl_stop"


class Worker:
    """Ties generator processes to the life of a Locust process that has users."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._runner = environment.runner
        self._generator: GeneratorProcess | None = None
        self._early: list[dict[str, Any]] = []  # commands that came while it was being started
        self._number = 0
        self._finished = False
        self._users = 0
        self._over = Event()
        self._over.set()
        events = environment.events
        events.test_start.add_listener(self._on_start)
        events.test_stopping.add_listener(self._on_stopping)
        events.quitting.add_listener(self._on_stopping)
        self._runner.register_message(START, self._on_command)
        self._runner.register_message(STOP, self._on_command)

    def user(self) -> None:
        """A Locust user's whole life. In a closed loop the generator plays as many."""
        self._users += 1
        self._count_users()
        try:
            self._over.wait()
        finally:
            self._users -= 1
            self._count_users()

    def _count_users(self) -> None:
        self._command({"users": self._users})

    def _command(self, command: dict[str, Any]) -> None:
        if self._generator is not None:
            self._generator.command(command)
        elif not self._over.is_set():
            self._early.append(command)

    def _on_start(self, **_: Any) -> None:
        job = self._environment.parsed_options.tritonctl_job
        if job is None:  # refused
            return
        number = job["numbers"].get(self._runner.client_id)
        if number is None:
            self._refuse("this worker came after the run had begun", "start a new run", 2)
            return
        self._number = number
        self._finished = False
        self._early.clear()
        self._over.clear()
        self._generator = GeneratorProcess(job["plan"], number, job["workers"], self._hear)
        for command in self._early:
            self._command(command)

    def _hear(self, line: dict[str, Any], records: list[str]) -> None:
        """Pass on what the generator says."""
        if records:
            self._send(RECORDS, lines="".join(records))
            for record in records:
                fire_request(self._environment, record)
        if "ready" in line:
            self._send(READY)
        elif "ended" not in line:
            self._finished = "finished" in line
            self._send(PROGRESS, line=line)
        else:
            self._generator = None
            self._over.set()
            if (refusal := line["refusal"]) is not None:
                self._refuse(refusal.problem, refusal.remedy, refusal.exit_code)
            elif not self._finished:
                self._send(LOST)

    def _refuse(self, problem: str, remedy: str, exit_code: int) -> None:
        self._send(REFUSED, problem=problem, remedy=remedy, exit_code=exit_code)

    def _send(self, message: str, **data: Any) -> None:
        self._runner.send_message(message, data | {"worker": self._number})

    def _on_command(self, msg: Any, **_: Any) -> None:
        self._command(msg.data)

    def _on_stopping(self, **_: Any) -> None:
        """Before Locust takes its users away: let what is in flight finish."""
        self._command({"stop": INTERRUPTED})
        self._over.wait()

# SPDX-License-Identifier: Apache-2.0
"""The worker part of a Locust process: run its share of the plan and report to the master.

A process without a master has both parts: Locust's local runner delivers messages to itself.
"""

from __future__ import annotations

from typing import Any

from gevent.event import Event

from loadlib.locust_generator_process import GeneratorProcess
from loadlib.locust_stats import fire_request
from loadlib.worker_share import INTERRUPTED

# Messages from a worker to the master, then (START, STOP) from the master to a worker.
READY, RECORDS, PROGRESS = "tritonctl_ready", "tritonctl_records", "tritonctl_progress"
REFUSED, LOST = "tritonctl_refused", "tritonctl_lost"
START, STOP = "tritonctl_start", "tritonctl_stop"


class LocustWorker:
    """Runs a generator process for each test of a Locust process with users."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._runner = environment.runner
        self._generator: GeneratorProcess | None = None
        self._pending_commands: list[dict[str, Any]] = []  # commands received while it starts
        self._number = 0
        self._finished = False
        self._users = 0
        self._finished_event = Event()
        self._finished_event.set()
        events = environment.events
        events.test_start.add_listener(self._on_start)
        events.test_stopping.add_listener(self._on_stopping)
        events.quitting.add_listener(self._on_stopping)
        self._runner.register_message(START, self._on_command)
        self._runner.register_message(STOP, self._on_command)

    def run_user(self) -> None:
        """Run a Locust user until the test ends. A closed loop simulates as many users."""
        self._users += 1
        self._count_users()
        try:
            self._finished_event.wait()
        finally:
            self._users -= 1
            self._count_users()

    def _count_users(self) -> None:
        self._command({"users": self._users})

    def _command(self, command: dict[str, Any]) -> None:
        if self._generator is not None:
            self._generator.command(command)
        elif not self._finished_event.is_set():
            self._pending_commands.append(command)

    def _on_start(self, **_: Any) -> None:
        job = self._environment.parsed_options.tritonctl_job
        if job is None:  # refused
            return
        number = job["numbers"].get(self._runner.client_id)
        if number is None:
            self._refuse("this worker connected after the run had started", "start a new run", 2)
            return
        self._number = number
        self._finished = False
        self._pending_commands.clear()
        self._finished_event.clear()
        self._generator = GeneratorProcess(
            job["plan"], number, job["workers"], self._on_generator_line
        )
        for command in self._pending_commands:
            self._command(command)

    def _on_generator_line(self, line: dict[str, Any], records: list[str]) -> None:
        """Forward a generator's line and the records before it to the master."""
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
            self._finished_event.set()
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
        """Let requests in flight finish before Locust stops its users."""
        self._command({"stop": INTERRUPTED})
        self._finished_event.wait()

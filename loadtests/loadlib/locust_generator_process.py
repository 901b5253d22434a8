# SPDX-License-Identifier: Apache-2.0
"""generator.py as a child of a Locust process: it measures, Locust shows and distributes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import gevent

from loadlib.json_lines import encoded
from loadlib.refusal import ENDPOINT_REFUSED, PLAN_REFUSED, Refusal

PROGRAM = Path(__file__).resolve().parents[1] / "generator.py"
_BUFFER = 1 << 16
_RECORD = b'{"i":'

Hear = Callable[[dict[str, Any], list[str]], None]


class GeneratorProcess:
    """A generator that is driven. `hear` gets each of its lines but records, and those before it.

    A line of no run, {"ended": exit code, "refusal": Refusal | None}, comes when it has ended.
    """

    def __init__(self, plan: dict[str, Any], worker: int, workers: int, hear: Hear) -> None:
        share = ["--worker", str(worker), "--workers", str(workers)]
        self._process = Popen(
            [sys.executable, str(PROGRAM), "--driven", *share],
            bufsize=_BUFFER,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            process_group=0,  # Ctrl-C at the terminal is for Locust to pass on
        )
        self._hear = hear
        self._problem: dict[str, str] = {}
        self._errors = gevent.spawn(self._read_errors)
        self.command(plan)
        gevent.spawn(self._read)

    def command(self, command: dict[str, Any]) -> None:
        """Send it a line; one that has ended needs none."""
        stdin = self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            if stdin is not None:
                stdin.write(encoded(command).encode())
                stdin.flush()

    def _read(self) -> None:
        records: list[str] = []
        for line in self._process.stdout or ():
            if line.startswith(_RECORD):
                records.append(line.decode())
                continue
            self._hear(json.loads(line), records)
            records = []
            gevent.sleep(0)  # a burst of lines must not keep Locust from its own work
        code = self._process.wait()
        self._errors.join()
        refused = code in (PLAN_REFUSED, ENDPOINT_REFUSED) and self._problem
        refusal = Refusal(**self._problem, exit_code=code) if refused else None
        self._hear({"ended": code, "refusal": refusal}, records)

    def _read_errors(self) -> None:
        """Keep what it says of a refusal, pass on everything else."""
        for line in self._process.stderr or ():
            try:
                record = json.loads(line)
                self._problem = {"problem": record["problem"], "remedy": record["remedy"]}
            except (ValueError, KeyError, TypeError):
                sys.stderr.write(line.decode("utf-8", "replace"))
                sys.stderr.flush()

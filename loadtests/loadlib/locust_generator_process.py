# SPDX-License-Identifier: Apache-2.0
"""Run generator.py as a child of a Locust process: it measures, Locust displays and distributes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import gevent

from loadlib.json_lines import encode_line
from loadlib.refusal import ENDPOINT_REFUSED, PLAN_REFUSED, RunRefusedError

PROGRAM = Path(__file__).resolve().parents[1] / "generator.py"
_BUFFER = 1 << 16
_RECORD = b'{"i":'

OnLine = Callable[[dict[str, Any], list[str]], None]


class GeneratorProcess:
    """A driven generator. `on_line` gets each line other than records, and the records before it.

    The last call gets {"ended": exit code, "refusal": RunRefusedError | None}.
    """

    def __init__(self, plan: dict[str, Any], worker: int, workers: int, on_line: OnLine) -> None:
        share = ["--worker", str(worker), "--workers", str(workers)]
        self._process = Popen(
            [sys.executable, str(PROGRAM), "--driven", *share],
            bufsize=_BUFFER,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            process_group=0,  # Locust forwards Ctrl-C
        )
        self._on_line = on_line
        self._problem: dict[str, str] = {}
        self._errors = gevent.spawn(self._read_errors)
        self.command(plan)
        gevent.spawn(self._read)

    def command(self, command: dict[str, Any]) -> None:
        """Send a command; ignored if the generator has ended."""
        stdin = self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            if stdin is not None:
                stdin.write(encode_line(command).encode())
                stdin.flush()

    def _read(self) -> None:
        records: list[str] = []
        for line in self._process.stdout or ():
            if line.startswith(_RECORD):
                records.append(line.decode())
                continue
            self._on_line(json.loads(line), records)
            records = []
            gevent.sleep(0)  # a burst of lines must not block Locust
        code = self._process.wait()
        self._errors.join()
        refused = code in (PLAN_REFUSED, ENDPOINT_REFUSED) and self._problem
        refusal = RunRefusedError(**self._problem, exit_code=code) if refused else None
        self._on_line({"ended": code, "refusal": refusal}, records)

    def _read_errors(self) -> None:
        """Store a refusal's problem and remedy; forward all other lines."""
        for line in self._process.stderr or ():
            try:
                record = json.loads(line)
                self._problem = {"problem": record["problem"], "remedy": record["remedy"]}
            except (ValueError, KeyError, TypeError):
                sys.stderr.write(line.decode("utf-8", "replace"))
                sys.stderr.flush()

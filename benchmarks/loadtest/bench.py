# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint as a process of its own, and load plans for it."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.console.voice import Console
from tritonctl.host import bundled
from tritonctl.loadtest.run.environment import generator_python
from tritonctl.loadtest.run.execution import LoadJob, LoadRun, run_load

ENGINES = ("asyncio", "locust")
TEXT, TENSORS = "mock", "mock_tensors"
LATENCY = "/dev/cpu_dma_latency"


@contextmanager
def mock(console: Console, *options: str | Path, cores: set[int] | None = None) -> Iterator[str]:
    """Its address; on these cores only, if they are given."""
    program = bundled.find("loadtests/mock_endpoint.py")
    command = [str(generator_python(console)), str(program), *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if cores:
                os.sched_setaffinity(process.pid, cores)
            yield json.loads((process.stdout or sys.stdin).readline())["grpc"]
        finally:
            process.terminate()
            process.wait()


@contextmanager
def cores(wanted: set[int]) -> Iterator[None]:
    """Children that are started meanwhile stay on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, wanted & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def awake() -> Iterator[bool]:
    """Idle cores poll meanwhile and do not sleep: True where this user may ask for that.

    A core of a virtual machine that sleeps is woken by its host, which takes some 0.05 to 0.1 ms
    for each hop of a token. Linux, PM Quality of Service: /dev/cpu_dma_latency, 32 bits, a wish in
    microseconds that lasts as long as the file is open; `tuned`'s latency-performance has it open.
    """
    try:
        file = os.open(LATENCY, os.O_WRONLY)
    except OSError:
        yield False
        return
    try:
        os.write(file, struct.pack("i", 0))
        yield True
    finally:
        os.close(file)


@dataclass(frozen=True)
class Bench:
    """Where runs lie, and what they are told with."""

    folder: Path
    console: Console

    def plan(self, url: str, kind: str, arrivals: dict[str, Any], seconds: float) -> dict[str, Any]:
        """A plan of the mock's text model or of its identity model."""
        return {
            "schema": "tritonctl/loadplan/v1",
            "endpoint": {"protocol": "grpc", "url": url},
            "model": TEXT if kind == "text" else TENSORS,
            "kind": kind,
            "classes": [{"name": kind, "prompts": str(self._prompts(kind))}],
            "arrivals": arrivals,
            "duration_seconds": seconds,
            "seed": 1,
            "timeout_seconds": 60,
            "cool_down_seconds": 30,
            "started_at": None,
        }

    def _prompts(self, kind: str) -> Path:
        tensor = {"shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}
        line = {"text_input": "a prompt of six short words"}
        file = self.folder / f"{kind}.jsonl"
        file.write_text(json.dumps(line if kind == "text" else {"inputs": {"INPUT0": tensor}}))
        return file

    def run(self, name: str, plan: dict[str, Any], engine: str, workers: int = 1) -> LoadRun:
        """Carry it out."""
        folder = self.folder / name
        folder.mkdir()
        job = LoadJob(plan=plan, folder=folder, workers=workers, engine=engine)
        return run_load(job, self.console)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def say(*cells: object) -> None:
    """One row of a Markdown table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def heading(title: str, columns: Sequence[str]) -> None:
    """A title and the head of a table."""
    print(f"\n**{title}**\n")
    say(*columns)
    say(*["---"] * len(columns))

# SPDX-License-Identifier: Apache-2.0
"""What benchmarks share: the shipped speller, a mock endpoint, load plans, cores, tables."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl import Project, build_engine, load_project, render, start, stop
from tritonctl.loadtest.run.environment import generator_python
from tritonctl.loadtest.run.execution import LoadJob, LoadRun, run_load
from tritonctl.loadtest.run.live import SilentBoard
from tritonctl.runtimes.server_state import EmbeddedServer

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLE = CHECKOUT / "examples" / "number-speller"
PROMPTS = EXAMPLE / "prompts.jsonl"
MODEL = "speller"
FREE_PORTS = {"grpc_port": 0, "http_port": 0, "metrics_port": 0}
ENGINES = ("asyncio", "locust")
TEXT, TENSORS = "mock", "mock_tensors"
LATENCY = "/dev/cpu_dma_latency"
SILENT = SilentBoard()


def speller(**fields: Any) -> dict[str, Any]:
    """The shipped checkpoint in int8, with these fields."""
    engine = {"builder": "openvino", "precision": "int8", "max_batch_size": 32, "max_seq_len": 512}
    return {MODEL: {"checkpoint": str(EXAMPLE / "checkpoint"), "engine": engine, **fields}}


def write_project(folder: Path, models: Mapping[str, Any], **sections: Any) -> Project:
    """A project file; the server takes free ports unless `sections` say otherwise."""
    record = {"schema": "tritonctl/v1", "models": models, "server": FREE_PORTS, **sections}
    (folder / "tritonctl.yaml").write_text(json.dumps(record), encoding="utf-8")
    return load_project(folder)


@contextmanager
def running(project: Project, cores: set[int] | None = None) -> Iterator[EmbeddedServer]:
    """All models built, then served by a real Triton on these cores."""
    for name in project.models:
        build_engine(project, name, SILENT)
    try:
        with on_cores(cores or os.sched_getaffinity(0)):
            state, _ = start(project, render(project, SILENT), SILENT)
        assert isinstance(state, EmbeddedServer)  # noqa: S101
        yield state
    finally:
        stop(project, SILENT)


@contextmanager
def mock(*options: str | Path, cores: set[int] | None = None) -> Iterator[str]:
    """The address of a mock endpoint, which runs on these cores."""
    program = CHECKOUT / "loadtests" / "mock_endpoint.py"
    command = [str(generator_python(SILENT)), str(program), *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if cores:
                os.sched_setaffinity(process.pid, cores)
            yield json.loads((process.stdout or sys.stdin).readline())["grpc"]
        finally:
            process.terminate()
            process.wait()


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Keep children started within the context on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def awake() -> Iterator[bool]:
    """Keep idle cores from sleeping; False where this user may not.

    The host takes some 0.05 to 0.1 ms to wake a virtual machine's core, for each hop of a token.
    Linux, PM Quality of Service: the microseconds in /dev/cpu_dma_latency (32 bits) hold while the
    file is open; `tuned`'s latency-performance does the same.
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
    """Runs load plans; each run has a folder in `folder`."""

    folder: Path

    def plan(self, url: str, kind: str, arrivals: dict[str, Any], seconds: float) -> dict[str, Any]:
        """A plan for the mock's text model or its identity model."""
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
        """Run a plan."""
        folder = self.folder / name
        folder.mkdir()
        job = LoadJob(plan=plan, folder=folder, workers=workers, engine=engine)
        return run_load(job, SILENT)


def wait_for(file: Path | None) -> None:
    """Until somebody has made the machine quiet, and this file."""
    while file is not None and not file.exists():
        time.sleep(0.1)


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

# SPDX-License-Identifier: Apache-2.0
"""Makes `loadlib` importable, as it is in a load generator; runs generators against an endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LOADTESTS = Path(__file__).parents[2] / "loadtests"
sys.path.insert(0, str(LOADTESTS))

from tests.loadtests.endpoint import Endpoint, serve  # noqa: E402

GENERATOR = LOADTESTS / "generator.py"


@dataclass(frozen=True)
class Ran:
    """What a generator left behind."""

    code: int
    records: list[dict[str, Any]]
    progress: list[dict[str, Any]]
    stderr: str

    @property
    def last(self) -> dict[str, Any]:
        """The line that tells how it ended."""
        return self.progress[-1]


Generate = Callable[..., Ran]


@pytest.fixture(scope="session")
def _served() -> Iterator[tuple[int, Endpoint]]:
    server, port, endpoint = serve()
    yield port, endpoint
    server.stop(None)


@pytest.fixture
def endpoint(_served: tuple[int, Endpoint]) -> Endpoint:
    """A running endpoint that has been asked nothing yet."""
    _served[1].requests.clear()
    _served[1].together = 0
    return _served[1]


@pytest.fixture
def url(_served: tuple[int, Endpoint]) -> str:
    """Where it answers."""
    return f"127.0.0.1:{_served[0]}"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Three prompts, a line each."""
    path = tmp_path / "prompts.txt"
    path.write_text("one two three\nfour five\nsix\n", encoding="utf-8")
    return path


@pytest.fixture
def plan(url: str, prompts: Path) -> dict[str, Any]:
    """A plan that is over in half a second."""
    return {
        "schema": "tritonctl/loadplan/v1",
        "endpoint": {"protocol": "grpc", "url": url},
        "model": "text",
        "kind": "text",
        "classes": [{"name": "short", "prompts": str(prompts), "max_tokens": 4}],
        "arrivals": {"process": "constant", "rate": 40},
        "count": 20,
        "seed": 1,
    }


def command(plan: dict[str, Any], folder: Path, worker: int = 0, workers: int = 1) -> list[str]:
    """The command line of a generator whose plan lies in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    share = ["--worker", str(worker), "--workers", str(workers)]
    return [sys.executable, str(GENERATOR), "--plan", str(path), "--output", str(folder), *share]


def ran(code: int, folder: Path, stdout: str, stderr: str, worker: int = 0) -> Ran:
    """What it left behind."""
    file = folder / f"records-{worker}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    progress = [json.loads(line) for line in stdout.splitlines()]
    return Ran(code, [json.loads(line) for line in lines], progress, stderr)


@pytest.fixture
def generate(tmp_path: Path) -> Generate:
    """Runs one worker of a plan to its end."""

    def run(plan: dict[str, Any], worker: int = 0, workers: int = 1) -> Ran:
        folder = tmp_path / "run"
        done = subprocess.run(
            command(plan, folder, worker, workers),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return ran(done.returncode, folder, done.stdout, done.stderr, worker)

    return run

# SPDX-License-Identifier: Apache-2.0
"""Times the parts from the call to the first token, with Docker Compose and without containers.

Usage: python benchmarks/docker/first_token.py [--starts 7] [--subjects shipped several]

The ways start the same repository in turns, in reverse order every second time; the first start of
each does not count. See ../README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent)]

from bench import FREE_PORTS, MODEL, SILENT, heading, say, speller  # noqa: E402
from deployed import (  # noqa: E402
    command_of,
    container_of,
    deploy,
    down,
    engine,
    inspected,
    log_of,
    override,
    write_project,
)
from tests.conftest import install_minilm  # noqa: E402
from timeline import Seen, Start, of_container, read_log, watched  # noqa: E402
from tritonctl import Project, stop  # noqa: E402
from tritonctl.runtimes.docker.compose_command import Compose  # noqa: E402
from tritonctl.runtimes.ports import reserved_ports  # noqa: E402

PROMPT = "7342 in English:"
SERVICE = "triton"
COMPOSE = "docker compose up --wait"
ON_DOCKER, EMBEDDED = "tritonctl up --mode docker", "tritonctl up"
IN_TURN = "compose, one model at a time"
ONE_AT_A_TIME = "--model-load-thread-count=1"
Starts = dict[str, list[Start]]
# Seconds of each part.
PARTS: dict[str, Callable[[Start], float | None]] = {
    "called to container created": lambda s: _between(s.seen.called, s.created),
    "to its first process": lambda s: _between(s.created, s.begun),
    "to tritonserver's first line": lambda s: _between(s.begun or s.seen.called, s.log.first_line),
    "to the first model's turn": lambda s: s.log.loading.begin - s.log.first_line,
    "models load": lambda s: s.log.loading.seconds,
    "to listening": lambda s: s.log.listening - s.log.loading.end,
    "to ready, as a client sees it": lambda s: s.seen.ready - s.log.listening,
    "to the first token of a stream": lambda s: s.seen.first_token - s.seen.ready,
    "**called to first token**": lambda s: s.seen.first_token - s.seen.called,
    "called until the command ends": lambda s: s.seen.returned - s.seen.called,
}


def main() -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=7, help="of each way")
    parser.add_argument("--subjects", nargs="+", default=[*SUBJECTS], choices=[*SUBJECTS])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, engine():
        for subject in arguments.subjects:
            models = SUBJECTS[subject](Path(name))
            # Held all the time: each start must find them free.
            with reserved_ports("127.0.0.1", FREE_PORTS) as ports:
                server = dict(zip(FREE_PORTS, ports, strict=True))
                ways = ways_to_start(Path(name), subject, models, server)
                print(f"\nload average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
                starts = measured(ways, arguments.starts)
            print(f"load average after: {os.getloadavg()[0]:.1f}")
            print_parts(subject, starts)
            print_models(subject, starts)
    return 0


def shipped(_: Path) -> dict[str, Any]:
    """The shipped speller: an ensemble and its three models."""
    return speller()


def several(folder: Path) -> dict[str, Any]:
    """The speller, and a sentence encoder of 22 M weights."""
    build = {"builder": "onnxruntime", "precision": "fp32", "max_batch_size": 8}
    encoder = {"task": "tensors", "checkpoint": str(install_minilm(folder)), "engine": build}
    return {**speller(), "encoder": encoder}


SUBJECTS = {"shipped": shipped, "several": several}


@dataclass(frozen=True)
class Way:
    """A way to start a repository and to stop it."""

    project: Project
    compose: Compose
    folder: Path
    command: Sequence[str]
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the service

    def start(self) -> Start:
        """Start and stop once."""
        override(self.compose, {SERVICE: self.changes})
        server = self.project.server
        endpoints = (f"127.0.0.1:{server.grpc_port}", f"127.0.0.1:{server.http_port}")
        try:
            return self._timed(watched(self.command, self.folder, endpoints, (MODEL, PROMPT)))
        finally:
            if self.folder == self.project.root:
                stop(self.project, SILENT)
            down(self.compose)

    def _timed(self, seen: Seen) -> Start:
        container = container_of(self.compose, SERVICE)
        if container:
            return of_container(seen, inspected(container), log_of(container))
        log = self.project.state / "server" / "triton.log"
        return Start(seen, read_log(log.read_text(encoding="utf-8")))


def ways_to_start(
    folder: Path, name: str, models: Mapping[str, Any], server: Mapping[str, Any]
) -> dict[str, Way]:
    """Build everything; return every way to start it."""
    root = folder / f"tritonctl-bench-{name}-{os.getpid()}"
    project = write_project(root, models, server=server)
    compose = deploy(root, "cpu")
    plain = compose.command("up", "--detach", "--wait")
    ours = [sys.executable, "-m", "tritonctl", "up", "--quiet"]
    in_turn = {"command": [*command_of(compose, SERVICE), ONE_AT_A_TIME]}
    return {
        COMPOSE: Way(project, compose, compose.folder, plain),
        IN_TURN: Way(project, compose, compose.folder, plain, in_turn),
        ON_DOCKER: Way(project, compose, root, [*ours, "--mode", "docker"]),
        EMBEDDED: Way(project, compose, root, ours),
    }


def measured(ways: Mapping[str, Way], count: int) -> Starts:
    """Start in turns; the first round warms files and caches."""
    starts: Starts = {name: [] for name in ways}
    for number in range(count + 1):
        for name in [*ways][:: -1 if number % 2 else 1]:
            start = ways[name].start()
            if number:
                starts[name].append(start)
    return starts


def print_parts(subject: str, starts: Starts) -> None:
    """Print a row for each part, a column for each way."""
    heading(f"{subject}: from the call to the first token, s", ("part", *starts))
    for part, of in PARTS.items():
        say(part, *(spread([of(start) for start in each]) for each in starts.values()))


def print_models(subject: str, starts: Starts) -> None:
    """Print how long each model loads, and all of them."""
    ways = (COMPOSE, IN_TURN, EMBEDDED)
    columns = ("model", "side by side", "one at a time", "embedded, side by side")
    heading(f"{subject}: models load, s", columns)
    for model in starts[COMPOSE][0].log.models:
        say(model, *(spread([s.log.models[model].seconds for s in starts[way]]) for way in ways))
    say("all", *(spread([s.log.loading.seconds for s in starts[way]]) for way in ways))
    pairs = zip(starts[COMPOSE], starts[IN_TURN], strict=True)
    ratios = [a.log.loading.seconds / b.log.loading.seconds for a, b in pairs]
    say("side by side / one at a time", spread(ratios), "1", "")


def spread(values: Sequence[float | None]) -> str:
    """The median, and lowest to highest."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{statistics.median(known):.2f} [{min(known):.2f} to {max(known):.2f}]"


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


if __name__ == "__main__":
    sys.exit(main())

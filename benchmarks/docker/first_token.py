# SPDX-License-Identifier: Apache-2.0
"""From the call to the first token, part by part: Docker Compose, and the same without containers.

Usage: python benchmarks/docker/first_token.py [--starts 7] [--subjects shipped several]

Every way starts the same repository, in turns, the order reversed every second time; each first
start is left out. See ../README.md.
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

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "loadtest"), str(HERE.parents[1])]

from bench import heading, say  # noqa: E402
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
from tritonctl.host import bundled  # noqa: E402
from tritonctl.host.progress import Silent  # noqa: E402
from tritonctl.project.file import load_project  # noqa: E402
from tritonctl.server.containers.compose_command import Compose  # noqa: E402
from tritonctl.server.lifecycle import stop  # noqa: E402
from tritonctl.server.ports import choose_ports  # noqa: E402

MODEL, PROMPT = "speller", "7342 in English:"
SERVICE = "triton"
COMPOSE = "docker compose up --wait"
ON_DOCKER, EMBEDDED = "tritonctl up --on docker", "tritonctl up"
IN_TURN = "compose, one model at a time"
ONE_AT_A_TIME = "--model-load-thread-count=1"
Starts = dict[str, list[Start]]
# Name of a part to the moments it lies between.
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
            ways = project(Path(name), subject, models)
            print(f"\nload average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            starts = measured(ways, arguments.starts)
            print(f"load average after: {os.getloadavg()[0]:.1f}")
            print_parts(subject, starts)
            print_models(subject, starts)
    return 0


def shipped(_: Path) -> dict[str, Any]:
    """The ensemble of the shipped speller, three models and itself."""
    checkpoint = bundled.find("examples/number-speller") / "checkpoint"
    build = {"builder": "openvino", "precision": "int8", "max_batch_size": 32, "max_seq_len": 512}
    return {MODEL: {"checkpoint": str(checkpoint), "engine": build}}


def several(folder: Path) -> dict[str, Any]:
    """It, and a sentence encoder of 22 M weights."""
    build = {"builder": "onnxruntime", "precision": "fp32", "max_batch_size": 8}
    encoder = {"task": "tensors", "checkpoint": str(install_minilm(folder)), "engine": build}
    return {**shipped(folder), "encoder": encoder}


SUBJECTS = {"shipped": shipped, "several": several}


@dataclass(frozen=True)
class Way:
    """How a repository is started and stopped, and where what it told is found."""

    compose: Compose
    folder: Path
    endpoints: tuple[str, str]
    command: Sequence[str]
    different: Mapping[str, Any] = field(default_factory=dict)  # of the service

    @property
    def root(self) -> Path:
        """The project."""
        return self.compose.folder.parent

    def start(self) -> Start:
        """Once, and down again."""
        override(self.compose, {SERVICE: self.different})
        try:
            return self._told(watched(self.command, self.folder, self.endpoints, (MODEL, PROMPT)))
        finally:
            if self.folder == self.root:
                stop(load_project(self.root), Silent())
            down(self.compose)

    def _told(self, seen: Seen) -> Start:
        container = container_of(self.compose, SERVICE)
        if container:
            return of_container(seen, inspected(container), log_of(container))
        log = self.root / ".tritonctl" / "server" / "triton.log"
        return Start(seen, read_log(log.read_text(encoding="utf-8")))


def project(folder: Path, name: str, models: Mapping[str, Any]) -> dict[str, Way]:
    """Everything built, and every way to start it."""
    fields = ("grpc_port", "http_port", "metrics_port")
    ports = dict(zip(fields, choose_ports("127.0.0.1", dict.fromkeys(fields, 0)), strict=True))
    root = folder / f"tritonctl-bench-{name}-{os.getpid()}"
    write_project(root, models, server=ports)
    compose = deploy(root, "cpu")
    endpoints = (f"127.0.0.1:{ports['grpc_port']}", f"127.0.0.1:{ports['http_port']}")
    plain = compose.command("up", "--detach", "--wait")
    ours = [sys.executable, "-m", "tritonctl", "up", "--quiet"]
    in_turn = {"command": [*command_of(compose, SERVICE), ONE_AT_A_TIME]}
    return {
        COMPOSE: Way(compose, compose.folder, endpoints, plain),
        IN_TURN: Way(compose, compose.folder, endpoints, plain, in_turn),
        ON_DOCKER: Way(compose, root, endpoints, [*ours, "--on", "docker"]),
        EMBEDDED: Way(compose, root, endpoints, ours),
    }


def measured(ways: Mapping[str, Way], count: int) -> Starts:
    """In turns; the first round is to warm files and caches."""
    starts: Starts = {name: [] for name in ways}
    for number in range(count + 1):
        for name in [*ways][:: -1 if number % 2 else 1]:
            start = ways[name].start()
            if number:
                starts[name].append(start)
    return starts


def print_parts(subject: str, starts: Starts) -> None:
    """A row for each part, a column for each way."""
    heading(f"{subject}: from the call to the first token, s", ("part", *starts))
    for part, of in PARTS.items():
        say(part, *(spread([of(start) for start in each]) for each in starts.values()))


def print_models(subject: str, starts: Starts) -> None:
    """What each model takes in its turn, and all of them."""
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
    """Median, lowest to highest."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{statistics.median(known):.2f} [{min(known):.2f} to {max(known):.2f}]"


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


if __name__ == "__main__":
    sys.exit(main())

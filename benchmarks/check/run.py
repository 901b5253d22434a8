# SPDX-License-Identifier: Apache-2.0
"""Times `tritonctl check`: 1,000 models with ensembles, and one model with start-up.

Usage: python benchmarks/check/run.py [--models 1000] [--rounds 5] [--profile]

Exit code 1 if the median of either is above its goal. See ../README.md.
"""

from __future__ import annotations

import argparse
import ast
import cProfile
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from google.protobuf import text_format  # noqa: E402

from tests.unit.checks.planted.assembled import repository  # noqa: E402
from tests.unit.checks.repositories import put  # noqa: E402
from tritonctl.checks.checker import check_repository  # noqa: E402
from tritonctl.checks.config.schema import model_config_schema  # noqa: E402
from tritonctl.checks.examples.files import Example  # noqa: E402
from tritonctl.checks.repository import CheckTarget  # noqa: E402

MANY_GOAL, ONE_GOAL = 5.0, 0.4
TARGET = CheckTarget("2.51.0")


def main() -> int:
    """Measure in turns, print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        many = models(Path(name) / "many", arguments.models)
        one = put(Path(name) / "one", _only("sentiment", repository()))
        if arguments.profile:
            profiled(many)
            return 0
        print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
        print("| | median s | lowest | highest | CPU s | CPU, ratio |\n" + "|---" * 6 + "|")
        title = f"check_repository, {arguments.models} models"
        good = compared(title, MANY_GOAL, arguments.rounds, {
            "check": lambda: checked(many),
            "protobuf's text_format.Parse of the same config.pbtxt": lambda: parsed(many),
            "ast.parse of the same model.py": lambda: read(many),
        })  # fmt: skip
        python, compiled = sys.executable, Path(name) / "compiled"
        ways = {
            "tritonctl check": [python, "-m", "tritonctl", "check", str(one)],
            "import tritonclient.grpc": [python, "-c", "import tritonclient.grpc"],
            "python -c pass": [python, "-c", "pass"],
        }
        for command in ways.values():  # fills the caches
            ran(command, compiled)
        good &= compared("one model, from the command line", ONE_GOAL, arguments.rounds * 2, {
            way: partial(ran, command, compiled) for way, command in ways.items()
        })  # fmt: skip
    return 0 if good else 1


def models(folder: Path, count: int) -> Path:
    """`count` models: the same ten, each time under new names."""
    files = repository()
    names = sorted({path.split("/")[0] for path in files}, key=len, reverse=True)
    for number in range(-(-count // len(names))):
        for path, content in files.items():
            if number * len(names) + names.index(path.split("/")[0]) >= count:
                continue
            text = content
            if isinstance(text, str):
                for name in names:
                    text = text.replace(f'"{name}"', f'"{name}_{number}"')
            model, _, rest = path.partition("/")
            put(folder, {f"{model}_{number}/{rest}": text})
    return folder


def _only(model: str, files: Example) -> Example:
    return {path: content for path, content in files.items() if path.startswith(f"{model}/")}


def checked(folder: Path) -> None:
    """Check the repository."""
    report = check_repository(folder, TARGET)
    if report.findings:
        raise SystemExit(f"the repository should be clean: {report.findings[0]}")


def parsed(folder: Path) -> None:
    """Parse with protobuf, which keeps no positions."""
    for path in folder.glob("*/config.pbtxt"):
        text_format.Parse(path.read_text(encoding="utf-8"), model_config_schema().ModelConfig())


def read(folder: Path) -> None:
    """Parse the Python files with Python."""
    for path in folder.glob("*/*/model.py"):
        ast.parse(path.read_bytes())


def ran(command: list[str], compiled: Path) -> None:
    """Run a process; its bytecode is cached, as after an installation with pip."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(compiled)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def compared(title: str, goal: float, rounds: int, ways: dict[str, Callable[[], None]]) -> bool:
    """Time the ways in turns; return whether the first one's median reaches the goal."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    worked: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started, before = time.perf_counter(), _processor_time()
            way()
            taken[name].append(time.perf_counter() - started)
            worked[name].append(_processor_time() - before)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    busy = {name: statistics.median(each) for name, each in worked.items()}
    ours = next(iter(ways))
    print(f"| **{title}** (goal {goal} s) | | | | | |")
    for name, each in taken.items():
        spread = f"{medians[name]:.3f} | {min(each):.3f} | {max(each):.3f}"
        print(f"| {name} | {spread} | {busy[name]:.3f} | {busy[name] / busy[ours]:.2f} |")
    return medians[ours] <= goal


def _processor_time() -> float:
    """Seconds of this process and its children, which other work hardly changes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def profiled(folder: Path) -> None:
    """Print the functions that take longest."""
    with cProfile.Profile() as profile:
        checked(folder)
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    sys.exit(main())

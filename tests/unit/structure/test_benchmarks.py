# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run by hand and rarely: at least they start."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
# in_process.py and random_llama.py run in other environments, modules have no command line.
PROGRAMS = sorted(
    path.relative_to(BENCHMARKS).as_posix()
    for path in BENCHMARKS.glob("*/*.py")
    if "argparse.ArgumentParser" in path.read_text(encoding="utf-8")
)
# A dozen seconds of a core, of which a busy machine has a tenth.
pytestmark = pytest.mark.timeout(240)
# Each program is a fork of a process that has imported what they share: that is a second of a core.
STARTS = """
import contextlib, importlib, json, os, runpy, sys, tempfile
folder, shared, programs = sys.argv[1], *map(json.loads, sys.argv[2:])
for name in shared:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
said = {}
for program in programs:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = [f"{folder}/{program}", "--help"]
            sys.path[0] = os.path.dirname(sys.argv[0])
            runpy.run_path(sys.argv[0], run_name="__main__")
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        said[program] = status, output.read().decode()
print(json.dumps(said))
"""


def shared() -> list[str]:
    """The modules of this project that they import."""
    names = set()
    for program in PROGRAMS:
        tree = ast.parse((BENCHMARKS / program).read_text(encoding="utf-8"))
        names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    return sorted(name for name in names if name and name.startswith(("tests.", "tritonctl.")))


@pytest.fixture(scope="module")
def started() -> dict[str, tuple[int, str]]:
    """How each ends that is asked for its help, and what it prints."""
    command = [sys.executable, "-c", STARTS, str(BENCHMARKS)]
    command += [json.dumps(shared()), json.dumps(PROGRAMS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_starts(started: dict[str, tuple[int, str]], program: str) -> None:
    """Every import is there."""
    status, printed = started[program]
    assert status == 0, printed
    assert f"usage: {Path(program).name}" in printed

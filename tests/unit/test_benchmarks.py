# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run by hand and rarely: at least they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# in_process.py and random_llama.py run in other environments, modules have no command line.
PROGRAMS = sorted(
    path.relative_to(BENCHMARKS).as_posix()
    for path in BENCHMARKS.glob("*/*.py")
    if "argparse.ArgumentParser" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_starts(program: str) -> None:
    """Every import is there."""
    command = [sys.executable, str(BENCHMARKS / program), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

# SPDX-License-Identifier: Apache-2.0
"""Runs the tests with deadlines again and again beside processes that burn CPU.

python tests/beside_burners.py [PASSES] [PYTEST ARGUMENTS ...]

A pass is one run of all of them (the marker `timed`), nothing tried twice. Each pass has a line;
the log of one that failed is kept in build/beside-burners/. Exit code 1 when one failed.

The limits after which a test counts as hanging are for a machine with a core to spare: here, and
beside whatever else runs, they are as many times longer as a loop in Python takes before each pass.
The deadlines that tests are about stay as they are.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
LOGS = CHECKOUT / "build" / "beside-burners"
BURNERS = 8
MARK = "pytest.mark.timed"
BURN = "while True: pass"
MEASURED_SECONDS = 2.0
# Of the tiers with engines, servers and containers, a pass would take an hour.
CHOSEN = "timed and not (engine or server or browser or docker or exhaustive)"
PYTEST = ("-m", "pytest", "-q", "-n", "6", "--dist", "loadgroup", "-m", CHOSEN)


@contextmanager
def burners(count: int) -> Iterator[None]:
    """So many processes that always want a core."""
    processes = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def modules() -> list[str]:
    """Those with the marker: to import all the others takes longer than a pass."""
    found = (CHECKOUT / "tests").rglob("test_*.py")
    return sorted(str(file) for file in found if MARK in file.read_text(encoding="utf-8"))


def slowness() -> float:
    """How many seconds one of CPU takes now; at least 1."""
    began, spent = time.monotonic(), time.process_time()
    while time.process_time() < spent + MEASURED_SECONDS:
        pass
    return max(1.0, (time.monotonic() - began) / (time.process_time() - spent))


def one_pass(number: int, arguments: list[str]) -> bool:
    """Whether all tests passed; one line says so."""
    log = LOGS / f"{number}.log"
    slower = slowness()
    began = time.monotonic()
    with log.open("wb") as file:
        command = [sys.executable, *PYTEST, f"--slowness={slower:.1f}", *arguments, *modules()]
        done = subprocess.run(command, cwd=CHECKOUT, stdout=file, stderr=file, check=False)
    [*_, last] = log.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    took = time.monotonic() - began
    said = f"{took:.0f} s, a core {slower:.1f} times slower, {last.strip('= ')}"
    print(f"pass {number}: {said}", flush=True)  # noqa: T201
    if done.returncode == 0:
        log.unlink()
    return done.returncode == 0


def main(passes: int, arguments: list[str]) -> int:
    """Run them; how many failed decides about the exit code."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with burners(BURNERS):
        whole = [one_pass(number, arguments) for number in range(1, passes + 1)]
    print(f"{sum(whole)} of {passes} passes beside {BURNERS} burners; logs: {LOGS}")  # noqa: T201
    return 0 if all(whole) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:]))

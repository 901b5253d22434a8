# SPDX-License-Identifier: Apache-2.0
"""The clock that fault tests set: read, and waited by, as if the machine's had been set."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faked_clock import FakedClock

pytestmark = pytest.mark.timed

HOUR, DAY = 3_600, 86_400
CHILD = """
import ctypes, errno, sys, time

def say(*words):
    print(*words, flush=True)

class Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

libc = ctypes.CDLL(None, use_errno=True)
semaphore = ctypes.create_string_buffer(32)
libc.sem_init(semaphore, 0, 0)
due = Time(int(time.time()) + {wait}, 0)  # before the test hears of anything, and sets the clock
say(time.time(), time.monotonic())
said = libc.sem_timedwait(semaphore, ctypes.byref(due))
say(said, ctypes.get_errno() == errno.ETIMEDOUT)
say(time.time(), time.monotonic())
"""


def test_a_jump_ends_a_wait(tmp_path: Path) -> None:
    """Of an hour, when the clock jumps a day forward; the monotonic clock goes on."""
    clock = FakedClock(tmp_path)
    with started(clock, wait=HOUR) as child:
        wall, monotonic = figures(child)
        clock.jump_to(DAY)
        assert line(child) == ["-1", "True"]
        wall_after, monotonic_after = figures(child)
    assert abs(wall_after - wall - DAY) < HOUR / 2
    assert 0 < monotonic_after - monotonic < HOUR / 2


def test_a_wait_of_a_clock_that_is_behind(tmp_path: Path) -> None:
    """It is as long as it says: by the machine's clock it would be over at once."""
    clock = FakedClock(tmp_path)
    clock.jump_to(-DAY)
    with started(clock, wait=2) as child:
        wall, monotonic = figures(child)
        assert abs(wall - time.time() + DAY) < HOUR / 2
        assert line(child) == ["-1", "True"]
        _, monotonic_after = figures(child)
    assert monotonic_after - monotonic > 1


@contextmanager
def started(clock: FakedClock, wait: int) -> Iterator[subprocess.Popen[str]]:
    """A process that waits until so many seconds from its clock's whole second."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD.format(wait=wait)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | clock.environment(),
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> list[str]:
    """What it says next."""
    assert child.stdout is not None
    return child.stdout.readline().split()


def figures(child: subprocess.Popen[str]) -> tuple[float, float]:
    """Its wall clock and its monotonic clock."""
    wall, monotonic = map(float, line(child))
    return wall, monotonic

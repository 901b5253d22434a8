# SPDX-License-Identifier: Apache-2.0
"""A generator whose commands come through a pipe, as Locust starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.loadtests.conftest import GENERATOR
from tests.loadtests.endpoint import Endpoint

pytestmark = pytest.mark.timed

_PATIENCE = 60.0


class Driver:
    """Drives one generator."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(GENERATOR), "--driven"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def send(self, line: dict[str, Any]) -> None:
        """A command, or first of all the plan."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def ready(self, plan: dict[str, Any]) -> None:
        """Send the plan, wait until it may start."""
        self.send(plan)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline()) == {"ready": True}

    def until_it_ends(self) -> list[dict[str, Any]]:
        """What it says while its standard input stays open."""
        assert self.process.stdout is not None
        said = [json.loads(line) for line in self.process.stdout]
        assert self.process.wait(_PATIENCE) == 0
        return said

    def rest(self) -> list[dict[str, Any]]:
        """Close its standard input; everything that it said until its end."""
        stdout, stderr = self.process.communicate(timeout=_PATIENCE)
        assert (self.process.returncode, stderr) == (0, "")
        return [json.loads(line) for line in stdout.splitlines()]


@pytest.fixture
def driver() -> Iterator[Driver]:
    """A generator that waits for its plan."""
    driver = Driver()
    yield driver
    driver.process.kill()
    driver.process.communicate()


@pytest.fixture
def closed(plan: dict[str, Any]) -> dict[str, Any]:
    """A closed loop of two users whose answers take longer than any test."""
    plan["classes"][0] |= {"max_tokens": 2, "parameters": {"gap_ms": 100_000}}
    return plan | {"arrivals": {"process": "closed", "concurrency": 2}, "count": 1000}


def until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_driver_sets_the_users(
    driver: Driver, closed: dict[str, Any], endpoint: Endpoint
) -> None:
    """Nobody at first, which ends nothing; then three; the one taken away abandons its request."""
    driver.ready(closed)
    driver.send({"start": None})
    driver.send({"users": 1})
    until(lambda: len(endpoint.requests) == 1)
    driver.send({"users": 3})
    until(lambda: len(endpoint.requests) == 3)
    driver.send({"users": 2})
    driver.send({"stop": "because"})
    driver.send({"stop": "because"})
    *said, last = driver.rest()
    outcomes = Counter(line["outcome"] for line in said if "i" in line)
    assert outcomes == {"abandoned": 3}
    assert (last["reason"], last["totals"]["sent"], last["unsent"]) == ("because", 3, 997)


def test_a_user_taken_away_leaves_at_once(
    driver: Driver, closed: dict[str, Any], endpoint: Endpoint
) -> None:
    """Its request is recorded as abandoned while the run goes on, and it sends no more."""
    driver.ready(closed)
    driver.send({"users": 2})
    driver.send({"start": None})
    until(lambda: len(endpoint.requests) == 2)
    driver.send({"users": 1})
    assert driver.process.stdout is not None
    line = next(line for line in map(json.loads, driver.process.stdout) if "i" in line)
    assert (line["outcome"], line["i"]) == ("abandoned", 1)
    assert len(endpoint.requests) == 2


def test_records_come_before_the_last_line(
    driver: Driver, plan: dict[str, Any], endpoint: Endpoint
) -> None:
    """Through the pipe as in the file: every request, then how it ended."""
    driver.ready(plan)
    driver.send({"start": time.time()})
    *said, last = driver.until_it_ends()
    assert sorted(line["i"] for line in said if "i" in line) == list(range(20))
    assert (last["reason"], last["lost"], last["totals"]["ok"]) == ("complete", 0, 20)


def test_a_driver_that_dies_ends_the_run(
    driver: Driver, closed: dict[str, Any], endpoint: Endpoint
) -> None:
    """Nothing is left running: the end of standard input abandons what is in flight."""
    driver.ready(closed)
    driver.send({"users": 2})
    driver.send({"start": None})
    until(lambda: len(endpoint.requests) == 2)
    last = driver.rest()[-1]
    assert (last["reason"], last["totals"]["abandoned"]) == ("interrupted", 2)


def test_stopped_before_it_started(driver: Driver, plan: dict[str, Any]) -> None:
    """Nothing is sent, and the last line says so."""
    driver.ready(plan)
    driver.send({"stop": "interrupted"})
    last = driver.rest()[-1]
    assert (last["reason"], last["totals"]["sent"], last["unsent"]) == ("interrupted", 0, 20)


def test_a_refused_plan(driver: Driver, plan: dict[str, Any]) -> None:
    """As with a file: exit code 2 and a line of JSON."""
    stdout, stderr = driver.process.communicate(json.dumps(plan | {"kind": "pictures"}), _PATIENCE)
    assert (driver.process.returncode, stdout) == (2, "")
    assert "pictures" in json.loads(stderr)["problem"]

# SPDX-License-Identifier: Apache-2.0
"""Many clients of one tenant against real frontends: what they were given in the worst minute.

Frontends are processes of their own with the ledger in the process, or in a real Redis. They die,
clients go away; every token is logged by the ensemble behind, by the clock of this machine.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.redis_server import RedisServer
from tritonctl.frontend.config import FrontendConfig
from tritonctl.project.frontend import Frontend, Ledger
from tritonctl.project.server import Tenant

PROGRAM = Path(__file__).with_name("logged_frontend.py")
MODEL, KEY = "speller", "k" * 32
MINUTE, LEASE = 60.0, 30.0
_PATIENCE_SECONDS = 60.0
_SLOT_AND_BEAT = 3.0


@dataclass(frozen=True)
class Scene:
    """`seconds` of `clients`, who all want more than there is. `crashes`: kill -9, this often.

    `cancels`: share of requests whose client goes away. No Redis: the ledger in the one process.
    """

    name: str
    frontends: int = 3
    redis: bool = True
    clients: int = 200
    seconds: float = 70.0
    budget: int = 20_000
    concurrency: int = 120
    cancels: float = 0.0
    crashes: int = 0


SCENES = (
    Scene("one frontend, ledger in the process", frontends=1, redis=False, cancels=0.2),
    Scene("three frontends, Redis", cancels=0.2),
    Scene("three frontends, Redis, four of them killed", cancels=0.2, crashes=4),
)


@dataclass
class Outcome:
    """What came of it. `given`: tokens in all; `worst`: in the worst 60 seconds; `again`: whether
    the whole budget could be reserved when nothing was under way for a minute and a lease."""

    scene: Scene
    answers: Counter[str] = field(default_factory=Counter)
    given: int = 0
    worst: int = 0
    again: bool = False


class Process:
    """One frontend; kill it and start it again as you like."""

    def __init__(self, folder: Path, name: str, config: FrontendConfig, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        file = folder / f"{name}.json"
        settings = config.settings.model_copy(update={"port": port})
        config.model_copy(update={"settings": settings}).write(file)
        self._command = [sys.executable, str(PROGRAM), str(file), str(self.log)]
        self.start()

    def start(self) -> None:
        """Returns before it listens."""
        self.process = subprocess.Popen(self._command)

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with suppress(httpx.HTTPError):
                httpx.get(f"{self.url}/health/live", timeout=5)
                return
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Returns when it has ended."""
        self.process.send_signal(how)
        self.process.wait(_PATIENCE_SECONDS)


def play(scene: Scene, folder: Path, seed: int = 7) -> Outcome:
    """Run it; takes its seconds, and a minute and a lease more."""
    outcome = Outcome(scene)
    with _running(scene, folder) as processes:
        around = _around(processes[0], scene.budget)
        outcome.answers = asyncio.run(_storm(scene, processes, seed))
        quiet = MINUTE + _SLOT_AND_BEAT + (LEASE if scene.crashes else 0)
        time.sleep(quiet)
        outcome.again = _whole_budget(scene, processes[0], around)
    events = sorted(event for one in processes for event in _events(one.log))
    outcome.given = sum(tokens for _, tokens in events)
    outcome.worst = worst_minute(events)
    return outcome


def worst_minute(events: Sequence[tuple[float, int]]) -> int:
    """The most tokens in any 60 seconds; events in order of time."""
    recent: deque[tuple[float, int]] = deque()
    total = worst = 0
    for when, tokens in events:
        recent.append((when, tokens))
        total += tokens
        while recent[0][0] <= when - MINUTE:
            total -= recent.popleft()[1]
        worst = max(worst, total)
    return worst


@contextmanager
def _running(scene: Scene, folder: Path) -> Iterator[list[Process]]:
    (folder / "key").write_text(KEY)
    tenant = Tenant(
        api_key_file=folder / "key",
        tokens_per_minute=scene.budget,
        concurrency=scene.concurrency,
    )
    with ExitStack() as ending:
        settings = Frontend(access_log=False)
        if scene.redis:
            redis = RedisServer(folder)
            ending.callback(redis.close)
            settings = Frontend(access_log=False, ledger=Ledger(redis=redis.url))
        config = FrontendConfig(
            servers=("127.0.0.1:1",), models=(MODEL,), settings=settings, tenants={"alice": tenant}
        )
        processes = []
        for number in range(scene.frontends):
            processes.append(Process(folder, f"frontend{number}", config, _free_port()))
            ending.callback(processes[-1].end)
        for process in processes:
            process.wait()
        yield processes


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def _storm(scene: Scene, processes: list[Process], seed: int) -> Counter[str]:
    chance, answers = random.Random(seed), Counter[str]()  # noqa: S311 - not a secret
    until = time.monotonic() + scene.seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        limits=limits, timeout=60, headers={"authorization": f"Bearer {KEY}"}
    ) as http:
        clients = [
            _client(scene, http, processes, random.Random(chance.random()), until, answers)  # noqa: S311
            for _ in range(scene.clients)
        ]
        await asyncio.gather(*clients, _crashes(scene, processes))
    return answers


async def _crashes(scene: Scene, processes: list[Process]) -> None:
    """One after the other, at even times; started again two seconds later."""
    for number in range(scene.crashes):
        await asyncio.sleep(scene.seconds / (scene.crashes + 1) - 2)
        one = processes[number % len(processes)]
        one.end()
        await asyncio.sleep(2)
        one.start()


async def _client(
    scene: Scene,
    http: httpx.AsyncClient,
    processes: list[Process],
    chance: random.Random,
    until: float,
    answers: Counter[str],
) -> None:
    while time.monotonic() < until:
        most = chance.randint(1, 30)
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "a " * chance.randint(50, 300)}],
            "max_tokens": most,
            "stream": True,
        }
        leaves = chance.randint(0, most) if chance.random() < scene.cancels else None
        url = f"{chance.choice(processes).url}/v1/chat/completions"
        try:
            answers[await _ask(http, url, body, leaves)] += 1
        except httpx.HTTPError:
            answers["broken"] += 1
        # Not as told: who waits as he is told never meets the limit.
        await asyncio.sleep(chance.uniform(1.0, 4.0))


async def _ask(http: httpx.AsyncClient, url: str, body: dict[str, Any], leaves: int | None) -> str:
    async with http.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            await response.aread()
            return str(response.status_code)
        seen = 0
        async for line in response.aiter_lines():
            seen += line.startswith("data: ")
            if leaves is not None and seen > leaves:
                return "left"
            if line == "data: [DONE]":
                return "complete"
    return "broken"


def _whole_budget(scene: Scene, process: Process, around: int) -> bool:
    """Whether the last token of the budget can be reserved, and not one more."""
    most = scene.budget - around
    more = _ask_once(process, most + 1)
    return more == (429, None) and _ask_once(process, most) == (200, 0)


def _around(process: Process, budget: int) -> int:
    """What a prompt takes of a budget that nobody has used: its bound, where nobody can count."""
    status, remaining = _ask_once(process, 1)
    assert status == 200, status
    assert remaining is not None
    return budget - remaining - 1


def _ask_once(process: Process, most: int) -> tuple[int, int | None]:
    """Status and remaining tokens at admission; leaves with the head of the answer."""
    with httpx.stream(
        "POST",
        f"{process.url}/v1/completions",
        json={"model": MODEL, "prompt": "word", "max_tokens": most, "stream": True},
        headers={"x-api-key": KEY},
        timeout=60,
    ) as response:
        told = response.headers.get("x-ratelimit-remaining-tokens")
        return response.status_code, int(told) if response.status_code == 200 else None


def _events(log: Path) -> list[tuple[float, int]]:
    """Of whole lines: the last may be cut by a kill."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    lines = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
    return [(float(when), int(tokens)) for when, tokens in lines]

# SPDX-License-Identifier: Apache-2.0
"""What a web server costs per event of a stream, one process each on a core of its own.

Usage: python benchmarks/frontend/web_servers.py [--streams 1 32 128] [--rounds 3] [--seconds 4]

Every server runs sse_app.py. Paced: 64 events, 5 ms apart; flat out: 64 at once. The load runs on
the other cores. CPU of the server's processes per event; the first event of an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "peers"), str(BENCHMARKS.parent)]

from bench import SILENT, awake, heading, on_cores, say  # noqa: E402
from meter import MARKER, cpu_seconds, percentile, processes  # noqa: E402
from servers import end, free_port  # noqa: E402
from sse_load import Client  # noqa: E402
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python  # noqa: E402

HERE = Path(__file__).resolve().parent
EVENTS, WARM_UP = 64, 1.0
SERVERS = {
    "uvicorn": "uvicorn sse_app:app --host 127.0.0.1 --port {} --loop uvloop --http httptools "
    "--no-access-log --log-level warning",
    "granian": "granian sse_app:app --interface asgi --host 127.0.0.1 --port {} --loop uvloop "
    "--workers 1 --no-access-log --log-level warning",
    "hypercorn": "hypercorn sse_app:app --bind 127.0.0.1:{} --worker-class uvloop",
}
PACES = {"5 ms apart": 5, "at once": 0}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    every = os.sched_getaffinity(0)
    first = min(every)
    results: dict[tuple[str, str, int, str], list[tuple[float, ...]]] = defaultdict(list)
    with awake():
        for number in range(arguments.rounds):
            for name in random.sample(sorted(SERVERS), len(SERVERS)):
                with server(name, f"{name}-{number}-{os.getpid()}", {first}) as (url, marker):
                    for streams in arguments.streams:
                        for pace, milliseconds in PACES.items():
                            for path in ("starlette", "raw"):
                                with on_cores(every - {first}):
                                    job = measured(
                                        f"{url}/{path}", marker, streams, milliseconds,
                                        arguments.seconds,
                                    )  # fmt: skip
                                    results[name, path, streams, pace].append(asyncio.run(job))
    columns = ("server", "response", "streams", "events", "events/s", "CPU us/event",
               "first event P50 ms", "P99 ms", "memory MB")  # fmt: skip
    heading("Web servers", columns)
    for key, values in sorted(results.items(), key=lambda item: (item[0][3], item[0][2], item[0])):
        medians = [statistics.median(one) for one in zip(*values, strict=True)]
        rate, cpu, p50, p99, memory = medians
        say(*key, f"{rate:.0f}", f"{cpu:.1f}", f"{p50:.2f}", f"{p99:.2f}", f"{memory:.0f}")


@contextmanager
def server(name: str, marker: str, cores: set[int]) -> Iterator[tuple[str, str]]:
    """One of them, once it answers."""
    recipe = EnvironmentRecipe("frontend-web-servers", (("-r", "web_servers.txt"),), folder=HERE)
    python = environment_python(ensure_environment(recipe, SILENT))
    port = free_port()
    module, *rest = SERVERS[name].format(port).split()
    environment = os.environ | {MARKER: marker}
    with on_cores(cores):
        command = [str(python), "-m", module, *rest]
        process = subprocess.Popen(command, cwd=HERE, env=environment, start_new_session=True)
    try:
        asyncio.run(answers(f"http://127.0.0.1:{port}/raw"))
        yield f"http://127.0.0.1:{port}", marker
    finally:
        end(process, marker)


async def answers(url: str) -> None:
    """Wait until it does."""
    deadline = time.monotonic() + 20
    while True:
        try:
            await Client(url).ask({"events": 1, "interval_ms": 0})
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def measured(
    url: str, marker: str, streams: int, interval: float, seconds: float
) -> tuple[float, ...]:
    """Events per second, CPU per event in microseconds, first event P50 and P99 in ms, memory."""
    body = {"events": EVENTS, "interval_ms": interval}
    begins = time.perf_counter() + WARM_UP
    ends = begins + seconds
    firsts: list[float] = []
    events = 0

    async def one() -> None:
        nonlocal events
        client = Client(url)
        while (began := time.perf_counter()) < ends:
            answer = await client.ask(body)
            if begins <= answer.last < ends:
                events += answer.events
                firsts.append(1000 * (answer.first - began))
        client.close()

    tasks = asyncio.gather(*(one() for _ in range(streams)))
    await asyncio.sleep(WARM_UP)
    before, at = cpu_seconds(marker), time.perf_counter()
    await asyncio.sleep(seconds)
    cpu, took = cpu_seconds(marker) - before, time.perf_counter() - at
    await tasks
    memory = sum(resident(pid) for pid in processes(marker)) / 2**20
    rate = events / took
    return (
        rate,
        1e6 * cpu / max(1, events),
        percentile(firsts, 0.5),
        percentile(firsts, 0.99),
        memory,
    )


def resident(pid: int) -> int:
    """Bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()

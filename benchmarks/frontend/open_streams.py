# SPDX-License-Identifier: Apache-2.0
"""Many event streams open at once through one frontend on one core: memory, CPU, late tokens.

Usage: python benchmarks/frontend/open_streams.py [--streams 1000] [--seconds 15] [--itl 500]

A mock endpoint answers on the other cores, a token every `--itl` ms for each stream, so that what
is measured is the frontend. The load is the raw reader of sse_load.py. Memory of the frontend's
processes (resident), before and with all streams open.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "peers"), str(BENCHMARKS.parent)]

from bench import TEXT, awake, heading, mock, on_cores, say  # noqa: E402
from meter import MARKER, cpu_seconds, percentile, processes  # noqa: E402
from sse_load import Client  # noqa: E402
from tests.clients.frontend_process import frontend  # noqa: E402
from tritonctl.frontend.config import FrontendConfig  # noqa: E402
from tritonctl.project.frontend import Frontend  # noqa: E402

SETTLE = 3.0


def main() -> None:
    """Open them, wait, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--itl", type=int, default=500, help="ms between two tokens of a stream")
    arguments = parser.parse_args()
    every = os.sched_getaffinity(0)
    first = {min(every)}
    others = every - first or every
    marker = f"open-{os.getpid()}"
    tokens = int((arguments.seconds + 4 * SETTLE) * 1000 / arguments.itl)
    options = ("--itl", str(arguments.itl), "--tokens", str(tokens), "--ttft", "20")
    with tempfile.TemporaryDirectory() as name, awake(), mock(*options, cores=others) as url:
        settings = Frontend(max_requests=2 * arguments.streams)
        config = FrontendConfig(servers=(url,), models=(TEXT,), settings=settings)
        with ExitStack() as stack:
            with on_cores(first):
                process = frontend(config, Path(name), **{MARKER: marker})
                address = stack.enter_context(process)
            with on_cores(others):
                asyncio.run(opened(f"{address}/v1/completions", marker, tokens, arguments))


async def opened(url: str, marker: str, tokens: int, arguments: argparse.Namespace) -> None:
    """Measure."""
    before = resident(marker)
    clients = [Client(url) for _ in range(arguments.streams)]
    body = {"model": TEXT, "prompt": "a prompt of six short words", "stream": True,
            "max_tokens": tokens}  # fmt: skip
    firsts: list[float] = []

    async def one(client: Client) -> float:
        began = time.perf_counter()
        answer = await client.ask(body)
        firsts.append(1000 * (answer.first - began))
        return answer.last - began

    asking = asyncio.gather(*map(one, clients))
    await asyncio.sleep(SETTLE)
    cpu, began = cpu_seconds(marker), time.perf_counter()
    await asyncio.sleep(arguments.seconds)
    busy = (cpu_seconds(marker) - cpu) / (time.perf_counter() - began)
    during = resident(marker)
    whole = await asking
    for client in clients:
        client.close()
    ideal = (20 + (tokens - 1) * arguments.itl) / 1000
    heading(
        f"{arguments.streams} streams, a token each {arguments.itl} ms, one core",
        ("memory before, MB", "with all open", "KB a stream", "of a core", "us/token",
         "first token P50 ms", "P99 ms", "end later than it should P99 ms"),
    )  # fmt: skip
    rate = arguments.streams * 1000 / arguments.itl
    late = percentile([1000 * (seconds - ideal) for seconds in whole], 0.99)
    say(
        f"{before / 2**20:.0f}", f"{during / 2**20:.0f}",
        f"{(during - before) / 1024 / arguments.streams:.1f}", f"{busy:.2f}",
        f"{1e6 * busy / rate:.0f}", f"{percentile(firsts, 0.5):.0f}",
        f"{percentile(firsts, 0.99):.0f}", f"{late:.0f}",
    )  # fmt: skip


def resident(marker: str) -> int:
    """Bytes of all its processes."""
    pages = 0
    for pid in processes(marker):
        pages += int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()

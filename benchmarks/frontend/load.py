# SPDX-License-Identifier: Apache-2.0
"""The load of one way to the model: a closed loop of streams of conversations.

Usage: load.py JOB_FILE, which prints the meter's result as JSON. Every answer has `tokens` tokens:
none ends by itself. Ways: `grpc`, tritonctl's own client; `http`, the raw reader of sse_load.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

sys.path += [str(Path(__file__).resolve().parents[1] / "peers")]

from meter import Meter
from sse_load import Client, RefusedError
from tritonctl import AsyncTritonClient, SamplingParameters, TritonctlError

Ask = Callable[[str], Awaitable[float]]  # when the first text came


def main() -> None:
    """Make the load that the job describes."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    run_loop = uvloop.run if job["way"] == "http" else asyncio.run  # gRPC has a loop of its own
    print(json.dumps(run_loop(run(job))))


async def run(job: dict[str, Any]) -> dict[str, float]:
    """One measurement."""
    prompts = list(job["prompts"])
    random.Random(job["seed"]).shuffle(prompts)
    turn = itertools.cycle(prompts)
    meter = Meter(job)

    async def client(asking: Callable[[dict[str, Any]], Any]) -> None:
        async with asking(job) as ask:
            while time.perf_counter() < meter.ends:
                began = time.perf_counter()
                try:
                    first = await asyncio.wait_for(ask(next(turn)), 60)
                except (TritonctlError, RefusedError, OSError, TimeoutError) as error:
                    meter.fail()
                    sys.stderr.write(f"{type(error).__name__}: {error}\n")
                    await asyncio.sleep(0.05)
                else:
                    meter.count(began, first, job["tokens"], right=True)

    if job["way"] == "grpc":
        async with AsyncTritonClient(job["url"]) as shared:
            await _all(job, meter, lambda: client(lambda job: _direct(job, shared)))
    else:
        await _all(job, meter, lambda: client(_http))
    return meter.result()


async def _all(job: dict[str, Any], meter: Meter, client: Callable[[], Awaitable[None]]) -> None:
    loading = asyncio.gather(*(client() for _ in range(job["streams"])))
    for edge in (meter.starts, meter.ends):
        await asyncio.sleep(edge - time.perf_counter())
        meter.tick()
    await loading


@asynccontextmanager
async def _direct(job: dict[str, Any], shared: AsyncTritonClient) -> AsyncIterator[Ask]:
    sampling = SamplingParameters(max_tokens=job["tokens"], end_id=-1)

    async def ask(prompt: str) -> float:
        first = 0.0
        conversation = [{"role": "user", "content": prompt}]
        async for chunk in shared.stream(job["model"], conversation, sampling):
            if chunk.text:
                first = first or time.perf_counter()
        return first

    yield ask


@asynccontextmanager
async def _http(job: dict[str, Any]) -> AsyncIterator[Ask]:
    one = Client(job["url"])
    fields = {"model": job["model"], "stream": True, "max_tokens": job["tokens"], **job["fields"]}

    async def ask(prompt: str) -> float:
        answer = await one.ask({**fields, "messages": [{"role": "user", "content": prompt}]})
        return answer.first

    try:
        yield ask
    finally:
        one.close()


if __name__ == "__main__":
    main()

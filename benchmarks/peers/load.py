# SPDX-License-Identifier: Apache-2.0
"""The load of every server: a closed loop of streams, or Poisson arrivals at a rate.

Usage: load.py JOB_FILE, in the client's environment. Prints the meter's result as JSON. Answers
are compared with those of the engine in process. One client for each protocol: tritonctl's own for
gRPC, aiohttp for HTTP.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from engine import padded
from meter import Meter
from tritonctl import AsyncTritonClient, SamplingParameters, TritonctlError
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import PROJECT_SERVER, AsyncConnection

TOLERANCE, PATIENCE_SECONDS = 1e-3, 10
Case = dict[str, Any]
Ask = Callable[[Case], Awaitable[tuple[float, Any]]]  # when the first piece came, the answer


def main() -> None:
    """Make the load that the job describes."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps(asyncio.run(run(job))))


async def run(job: dict[str, Any]) -> dict[str, float]:
    """One measurement."""
    cases = json.loads(Path(job["cases"]).read_text(encoding="utf-8"))
    random.Random(job["seed"]).shuffle(cases)
    asking = grpc_client if job["protocol"].startswith("grpc") else http_client
    async with asking(job) as ask:
        # One walk over all that was imported takes as long as 100 requests, and comes to either
        # client by chance.
        gc.collect()
        gc.freeze()
        meter = Meter(job)
        load = open_loop if job.get("rate") else closed_loop
        loading = asyncio.create_task(load(job, ask, itertools.cycle(cases), meter))
        for edge in (meter.starts, meter.ends):
            await asyncio.sleep(edge - time.perf_counter())
            meter.tick()
        await loading
    if "each" in job:
        Path(job["each"]).write_text(json.dumps(meter.each), encoding="utf-8")
    return meter.result()


async def closed_loop(job: dict[str, Any], ask: Ask, cases: Iterator[Case], meter: Meter) -> None:
    """`streams` clients, each with the next request as soon as it has its answer."""

    async def client() -> None:
        while time.perf_counter() < meter.ends:
            await one(ask, next(cases), meter)

    await asyncio.gather(*(client() for _ in range(job["streams"])))


async def open_loop(job: dict[str, Any], ask: Ask, cases: Iterator[Case], meter: Meter) -> None:
    """Requests at random times, `rate` a second, whatever the answers do."""
    draw, due, under_way = random.Random(job["seed"]), time.perf_counter(), set()
    while due < meter.ends:
        await asyncio.sleep(due - time.perf_counter())
        under_way.add(asyncio.create_task(one(ask, next(cases), meter, due)))
        due += draw.expovariate(job["rate"])
    _, late = await asyncio.wait(under_way, timeout=PATIENCE_SECONDS)
    for task in late:
        task.cancel()
        meter.fail()


async def one(ask: Ask, case: Case, meter: Meter, due: float | None = None) -> None:
    """A request, timed from when it was due."""
    began = due or time.perf_counter()
    try:
        first, answer = await asyncio.wait_for(ask(case), 60)
    except (TritonctlError, aiohttp.ClientError, TimeoutError) as error:
        meter.fail()
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        await asyncio.sleep(0.05)
        return
    meter.count(began, first, case["tokens"], right=is_right(case, answer))


def is_right(case: Case, answer: Any) -> bool:
    """The same text, or the same vector: within rounding, or the case's least cosine."""
    if "text" in case:
        return bool(answer == case["text"])
    if "content" in case:
        got, wanted = np.ravel(answer), np.asarray(case["vector"])
        lengths = np.linalg.norm(got) * np.linalg.norm(wanted)
        return bool(got.shape == wanted.shape and got @ wanted >= case["least_cosine"] * lengths)
    near = np.allclose(np.asarray(answer).ravel(), case["vector"], atol=TOLERANCE)
    return bool(near)


@asynccontextmanager
async def grpc_client(job: dict[str, Any]) -> AsyncIterator[Ask]:
    """tritonctl's asynchronous client; protocol grpc.aio: over that library's channel."""
    if job["protocol"] == "grpc.aio":
        AsyncConnection.__init__.__defaults__ = (PROJECT_SERVER, Endpoint.aio_channel)
    async with AsyncTritonClient(job["url"]) as client:

        async def text(case: Case) -> tuple[float, str]:
            first, pieces = 0.0, []
            sampling = SamplingParameters(max_tokens=job["max_tokens"])
            async for chunk in client.stream(job["model"], case["prompt"], sampling):
                if chunk.text:
                    first = first or time.perf_counter()
                    pieces.append(chunk.text)
            return first or time.perf_counter(), "".join(pieces)

        async def vector(case: Case) -> tuple[float, Any]:
            answer = await client.infer(job["model"], padded([case["row"]]), [job["output"]])
            return time.perf_counter(), answer[job["output"]]

        async def embedding(case: Case) -> tuple[float, Any]:
            [answer] = await client.embed(job["model"], [case["content"]])
            return time.perf_counter(), answer.vector

        yield {"text": text, "encoder": vector, "texts": embedding}[job["subject"]]


@asynccontextmanager
async def http_client(job: dict[str, Any]) -> AsyncIterator[Ask]:
    """aiohttp with JSON requests; text comes as the plain chunks of a response."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as session:

        async def text(case: Case) -> tuple[float, str]:
            first, pieces = 0.0, []
            asked = {"prompt": case["prompt"], "max_tokens": job["max_tokens"]}
            async with session.post(job["url"], json=asked) as response:
                async for piece in response.content.iter_any():
                    first = first or time.perf_counter()
                    pieces.append(piece)
            return first or time.perf_counter(), b"".join(pieces).decode("utf-8", "replace")

        async def vector(case: Case) -> tuple[float, Any]:
            async with session.post(job["url"], json={"rows": [case["row"]]}) as response:
                answer = await response.json()
            return time.perf_counter(), answer

        async def embedding(case: Case) -> tuple[float, Any]:
            async with session.post(job["url"], json={"texts": [case["content"]]}) as response:
                answer = await response.json()
            return time.perf_counter(), answer

        async def openai(case: Case) -> tuple[float, Any]:
            asked = {"model": job["model"], "input": [case["content"]]}
            async with session.post(job["url"], json=asked) as response:
                answer = await response.json()
            return time.perf_counter(), answer["data"][0]["embedding"]

        texts = openai if job["protocol"] == "openai" else embedding
        yield {"text": text, "encoder": vector, "texts": texts}[job["subject"]]


if __name__ == "__main__":
    main()

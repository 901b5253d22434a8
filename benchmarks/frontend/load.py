# SPDX-License-Identifier: Apache-2.0
"""The load of one way to the model: a closed loop of streams of conversations.

Usage: load.py JOB_FILE, which prints the result as JSON. An answer has half of `tokens` tokens to
all of them, at random: none ends by itself. Ways: `grpc`, tritonctl's own client; `http`, the raw
reader of sse_load.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

sys.path += [str(Path(__file__).resolve().parents[1] / "peers")]

from meter import cpu_seconds, percentile
from sse_load import Client, RefusedError
from tritonctl import AsyncTritonClient, SamplingParameters, TritonctlError

Ask = Callable[[str, int], Awaitable[float]]  # prompt, tokens → when the first text came
FAILURES = (TritonctlError, RefusedError, OSError, TimeoutError)


@dataclass(frozen=True)
class Answer:
    """Times by perf_counter."""

    began: float
    first: float
    ended: float
    tokens: int

    def within(self, begin: float, end: float) -> float:
        """Tokens that came in a window, if they came evenly."""
        overlap = min(self.ended, end) - max(self.began, begin)
        return self.tokens * max(0.0, overlap) / (self.ended - self.began)


def main() -> None:
    """Make the load that the job describes."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    run_loop = uvloop.run if job["way"] == "http" else asyncio.run  # gRPC has a loop of its own
    print(json.dumps(run_loop(run(job))))


async def run(job: dict[str, Any]) -> dict[str, float]:
    """One measurement: rates per second, milliseconds, CPU in microseconds per token."""
    draw = random.Random(job["seed"])
    answers: list[Answer] = []
    failed = 0
    begin = time.perf_counter() + job["warm_up"]
    end = begin + job["seconds"]

    async def client(ask: Ask) -> None:
        nonlocal failed
        while (began := time.perf_counter()) < end:
            # Of different lengths, lest all streams begin and end together.
            tokens = draw.randint(job["tokens"] // 2, job["tokens"])
            try:
                first = await asyncio.wait_for(ask(draw.choice(job["prompts"]), tokens), 60)
            except FAILURES as error:
                failed += 1
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
                await asyncio.sleep(0.05)
            else:
                answers.append(Answer(began, first, time.perf_counter(), tokens))

    async with WAYS[job["way"]](job) as asks:
        loading = asyncio.gather(*map(client, asks))
        await asyncio.sleep(begin - time.perf_counter())
        before = time.perf_counter(), cpu_seconds(job["marker"]), time.process_time()
        await asyncio.sleep(end - time.perf_counter())
        after = time.perf_counter(), cpu_seconds(job["marker"]), time.process_time()
        await loading
    seconds, cpu, client_cpu = (b - a for a, b in zip(before, after, strict=True))
    tokens = sum(answer.within(before[0], after[0]) for answer in answers)
    counted = [one for one in answers if begin <= one.first < end]
    firsts = [1000 * (one.first - one.began) for one in counted]
    return {
        "requests": len(counted),
        "tokens": tokens / seconds,
        "ttft_p50": percentile(firsts, 0.5),
        "ttft_p99": percentile(firsts, 0.99),
        "whole_p50": percentile([1000 * (one.ended - one.began) for one in counted], 0.5),
        "cpu": 1e6 * cpu / tokens if tokens else 0.0,
        "client_cpu": 1e6 * client_cpu / tokens if tokens else 0.0,
        "failed": failed,
    }


@asynccontextmanager
async def _grpc(job: dict[str, Any]) -> AsyncIterator[list[Ask]]:
    """One client, as applications share one."""
    async with AsyncTritonClient(job["url"]) as shared:

        async def ask(prompt: str, tokens: int) -> float:
            first = 0.0
            conversation = [{"role": "user", "content": prompt}]
            sampling = SamplingParameters(max_tokens=tokens, end_id=-1)
            async for chunk in shared.stream(job["model"], conversation, sampling):
                if chunk.text:
                    first = first or time.perf_counter()
            return first

        yield [ask] * job["streams"]


@asynccontextmanager
async def _http(job: dict[str, Any]) -> AsyncIterator[list[Ask]]:
    """A connection for each stream."""
    clients = [Client(job["url"]) for _ in range(job["streams"])]

    def asks(client: Client) -> Ask:
        async def ask(prompt: str, tokens: int) -> float:
            messages = [{"role": "user", "content": prompt}]
            fields = {"model": job["model"], "messages": messages, "max_tokens": tokens}
            return (await client.ask({**fields, "stream": True, **job["fields"]})).first

        return ask

    try:
        yield [asks(client) for client in clients]
    finally:
        for client in clients:
            client.close()


WAYS = {"grpc": _grpc, "http": _http}


if __name__ == "__main__":
    main()

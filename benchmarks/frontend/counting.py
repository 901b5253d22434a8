# SPDX-License-Identifier: Apache-2.0
"""Two ways to count a prompt's tokens before a server is chosen: a process here, or the server.

Usage: python benchmarks/frontend/counting.py PROJECT [--requests 2000]

PROJECT runs (`tritonctl up`) and has a text model of three steps. In turns: the counting process
(python_backends/countlib), and the model's tokenizer step asked over gRPC. Latency, and processor
time of all processes of each way per request: this one, the counting process and its template's, or
Triton and its stubs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tritonctl import load_project
from tritonctl.frontend.counting.prompts import PromptCounter
from tritonctl.host import bundled
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.model_config import all_steps

TICK = os.sysconf("SC_CLK_TCK")
Count = Callable[[str], Awaitable[int]]


def cpu_seconds(pids: Iterable[int]) -> float:
    """Of these processes so far, user and system."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def family(pid: int) -> list[int]:
    """A process and all below it."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for each in threads for child in each.read_text().split()]
    return [pid, *(one for child in children for one in family(child))]


async def measured(count: Count, prompts: list[str], together: int) -> list[float]:
    """Milliseconds of each."""
    places = asyncio.Semaphore(together)

    async def one(prompt: str) -> float:
        async with places:
            begun = time.perf_counter()
            await count(prompt)
            return (time.perf_counter() - begun) * 1000

    return await asyncio.gather(*map(one, prompts))


async def compare(arguments: argparse.Namespace) -> None:
    """The table."""
    project = load_project(arguments.project)
    [model] = project.models
    server = project.server
    state = json.loads((project.state / "server" / "state.json").read_text())
    pid = int(state["pid"])
    async with AsyncTritonClient(f"127.0.0.1:{server.grpc_port}") as client:
        configs = {}
        waiting = [model]
        while waiting:
            name = waiting.pop()
            configs[name] = await client.model_config(name)
            waiting += all_steps(name, configs)
            waiting = [each for each in waiting if each not in configs]
        counter = PromptCounter(project.repository, bundled.find("python_backends"), print)
        await counter.configure(model, configs)
        await counter.start()

        async def here(prompt: str) -> int:
            return (await counter.count(model, {"messages": [prompt]})).tokens

        async def there(prompt: str) -> int:
            tensor = np.array([[prompt.encode()]], dtype=object)
            answer = await client.infer(
                f"{model}_tokenizer", {"messages": tensor}, ["input_lengths"]
            )
            return int(answer["input_lengths"][0, 0])

        print("| prompt, tokens | at once | way | P50 ms | P99 ms | CPU ms a request |")
        print("|---|---|---|---|---|---|")
        for words in (1, 50):
            text = "7342 in English: " * words
            message = json.dumps([{"role": "user", "content": text}])
            tokens = await here(message)
            if tokens <= 511:
                assert tokens == await there(message)  # noqa: S101
            for together in (1, 32):
                for name, count, pids in (
                    ("counting process", here, lambda: family(os.getpid())),
                    ("tokenizer step", there, lambda: [os.getpid(), *family(pid)]),
                ):
                    prompts = [message] * arguments.requests
                    await measured(count, prompts[:200], together)
                    before = cpu_seconds(pids())
                    times = sorted(await measured(count, prompts, together))
                    cpu = (cpu_seconds(pids()) - before) / len(prompts) * 1000
                    p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
                    cells = f"{tokens} | {together} | {name} | {p50:.2f} | {p99:.2f} | {cpu:.2f}"
                    print(f"| {cells} |", flush=True)
        await counter.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("project", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    asyncio.run(compare(parser.parse_args()))

# SPDX-License-Identifier: Apache-2.0
"""Streams in a process of its own, for tests that change what the process sees.

    python streaming_child.py '{"urls": [...], "model": ..., "prompts": [...], "max_tokens": N,
                                "timeout": S}'

Prints `amid` once half of the streams have had a few tokens, then their texts and figures.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from tritonctl.errors import TritonctlError
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.generation import SamplingParameters

_FEW = 4


async def stream_all(job: dict[str, Any]) -> list[dict[str, Any]]:
    """What each stream was answered."""
    sampling = SamplingParameters(max_tokens=job["max_tokens"], end_id=-1)
    streams: list[dict[str, Any]] = [
        {"prompt": prompt, "text": "", "tokens": 0, "pieces": 0, "longest_pause": 0.0}
        for prompt in job["prompts"]
    ]
    told = False

    async def one(client: AsyncTritonClient, stream: dict[str, Any]) -> None:
        nonlocal told
        last = time.monotonic()
        try:
            async for chunk in client.stream(
                job["model"], stream["prompt"], sampling, timeout=job["timeout"]
            ):
                now = time.monotonic()
                stream["longest_pause"] = max(stream["longest_pause"], now - last)
                last = now
                stream["text"] += chunk.text
                stream["tokens"] = chunk.num_output_tokens
                stream["pieces"] += 1
                if not told and sum(s["pieces"] > _FEW for s in streams) * 2 >= len(streams):
                    told = True
                    print("amid", time.time(), flush=True)  # noqa: T201 - to the test
        except TritonctlError as error:
            stream["error"] = error.problem

    async with AsyncTritonClient(job["urls"][0], resume_on=job["urls"][1:]) as client:
        await asyncio.gather(*(one(client, stream) for stream in streams))
    return streams


if __name__ == "__main__":
    answers = asyncio.run(stream_all(json.loads(sys.argv[1])))
    print(json.dumps({"time": time.time(), "streams": answers}), flush=True)  # noqa: T201

# SPDX-License-Identifier: Apache-2.0
"""Ray Serve: `@serve.batch` joins requests. https://docs.ray.io/en/latest/serve/advanced-guides/dyn-req-batch.html

Usage: ray_texts.py PORT.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import ray
from ray import serve
from starlette.requests import Request

from text_engine import Texts, read_settings

SETTINGS = read_settings()


@serve.deployment(
    num_replicas=SETTINGS["workers"], max_ongoing_requests=1024, ray_actor_options={"num_cpus": 1}
)
class Embeddings:
    """A text in, its vector out."""

    def __init__(self) -> None:
        self.texts = Texts(read_settings())

    @serve.batch(max_batch_size=SETTINGS["rows"], batch_wait_timeout_s=SETTINGS["wait"])
    async def encode(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text, beside the loop that gathers the next ones."""
        vectors = await asyncio.to_thread(self.texts.encode, texts)
        made: list[list[float]] = vectors.tolist()
        return made

    async def __call__(self, request: Request) -> list[list[float]]:
        """The shape that BentoML answers with."""
        (text,) = (await request.json())["texts"]
        return [await self.encode(text)]


def main() -> None:
    """Serve until SIGTERM."""
    names = ("PEERS_SETTINGS", "PEERS_SERVER")
    variables = {name: os.environ[name] for name in names}
    runtime = {"env_vars": variables | {"PYTHONPATH": str(Path(__file__).resolve().parent)}}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env=runtime, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Embeddings.bind(), route_prefix="/encode")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

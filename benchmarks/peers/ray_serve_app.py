# SPDX-License-Identifier: Apache-2.0
"""Ray Serve: a deployment that answers with Starlette's StreamingResponse.

Usage: ray_serve_app.py PORT. https://docs.ray.io/en/latest/serve/
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

from engine import TextEngine, read_settings


@serve.deployment(num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 1})
class Text:
    """Streams text."""

    def __init__(self) -> None:
        self.engine = TextEngine(read_settings())

    async def __call__(self, request: Request) -> StreamingResponse:
        """The answer as it comes."""
        asked = await request.json()
        pieces = self.engine.stream(asked["prompt"], asked["max_tokens"])
        return StreamingResponse(pieces, media_type="text/plain")


def main() -> None:
    """Serve until SIGTERM."""
    names = ("PEERS_SETTINGS", "PEERS_SERVER")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    runtime = {"env_vars": variables | {"PYTHONPATH": str(Path(__file__).resolve().parent)}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=runtime, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Text.bind(), route_prefix="/generate")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

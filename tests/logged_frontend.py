# SPDX-License-Identifier: Apache-2.0
"""A frontend's process over an ensemble that logs each token as it hands it over.

    python tests/logged_frontend.py CONFIG.json LOG

A line a token: seconds since 1970, tokens (with the first, the prompt's, too).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fakes.ensemble_client import FakeEnsemble, tokens_of
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.protocol.generation import Chunk, Prompt, SamplingParameters

_BETWEEN_TOKENS = 0.02


class LoggedEnsemble(FakeEnsemble):
    """Answers of a length of its own, up to max_tokens."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._chance = random.Random(os.getpid())  # noqa: S311 - not a secret

    async def stream(
        self, model: str, prompt: Prompt, sampling: SamplingParameters, **more: Any
    ) -> AsyncIterator[Chunk]:
        """As the client's."""
        del model, more  # there is one, and nothing else counts
        read, most = tokens_of(prompt), sampling.max_tokens or 1
        length = self._chance.randint(1, most)
        for number in range(1, length + 1):
            await asyncio.sleep(_BETWEEN_TOKENS)
            tokens = 1 + (read if number == 1 else 0)
            # Before the frontend has it; at once in the file, whatever kills this process.
            os.write(self._log, f"{time.time():.6f} {tokens}\n".encode())
            reason = "" if number < length else "length" if length == most else "stop"
            yield Chunk("a ", read, number, reason, time.monotonic_ns(), token_ids=(number,))


def main(config: Path, log: Path) -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.ERROR)
    read = FrontendConfig.read(config)
    app = build_app(read, connect=LoggedEnsemble(log).connect)
    settings = read.settings
    uvicorn.run(
        app,
        host=settings.address,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

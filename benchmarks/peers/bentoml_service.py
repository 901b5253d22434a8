# SPDX-License-Identifier: Apache-2.0
"""BentoML: an async generator streams, adaptive batching joins embeddings.

One worker: an engine takes the whole machine. https://docs.bentoml.com/en/latest/
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import bentoml

from engine import Encoder, TextEngine, read_settings


@bentoml.service(workers=1, traffic={"timeout": 60})
class Text:
    """Streams text."""

    def __init__(self) -> None:
        self.engine = TextEngine(read_settings())

    @bentoml.api
    async def generate(self, prompt: str, max_tokens: int) -> AsyncGenerator[str, None]:
        """The answer as it comes."""
        async for piece in self.engine.stream(prompt, max_tokens):
            yield piece


@bentoml.service(workers=1, traffic={"timeout": 60})
class Embeddings:
    """Batches adaptively, within its default latency bound."""

    def __init__(self) -> None:
        self.encoder = Encoder(read_settings())

    @bentoml.api(batchable=True, max_batch_size=32)
    def encode(self, rows: list[list[int]]) -> list[list[float]]:
        """One embedding a row; a request brings one."""
        return self.encoder.encode(rows).tolist()

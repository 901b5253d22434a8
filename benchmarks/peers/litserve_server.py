# SPDX-License-Identifier: Apache-2.0
"""LitServe: `enable_async` streams many answers at once, `max_batch_size` joins embeddings.

Usage: litserve_server.py text|encoder PORT. https://lightning.ai/docs/litserve/

FastAPI would parse what `decode_request` and `encode_response` are annotated with: they are not.
"""

import sys
from collections.abc import AsyncIterator
from typing import Any

import litserve

from engine import Encoder, TextEngine, read_settings


class Text(litserve.LitAPI):
    """Streams text."""

    def setup(self, _device: str) -> None:
        """Load the engine, in the worker."""
        self.engine = TextEngine(read_settings())

    async def decode_request(self, request):
        """As it comes."""
        return request

    async def predict(self, request: dict[str, Any]) -> AsyncIterator[str]:
        """The answer as it comes."""
        async for piece in self.engine.stream(request["prompt"], request["max_tokens"]):
            yield piece

    async def encode_response(self, output):
        """Plain text."""
        async for piece in output:
            yield piece


class Embeddings(litserve.LitAPI):
    """Batches what arrives within `batch_timeout`."""

    def setup(self, _device: str) -> None:
        """Load the graph, in the worker."""
        self.encoder = Encoder(read_settings())

    def decode_request(self, request):
        """The ids of a row."""
        (row,) = request["rows"]
        return row

    def batch(self, inputs: list[list[int]]) -> list[list[int]]:
        """Rows stay as they are: the encoder pads them."""
        return inputs

    def predict(self, rows: list[list[int]]) -> list[list[float]]:
        """One embedding a row."""
        return self.encoder.encode(rows).tolist()

    def unbatch(self, output: list[list[float]]) -> list[list[float]]:
        """A list already."""
        return output

    def encode_response(self, output):
        """The shape that BentoML answers with."""
        return [output]


def main() -> None:
    """Serve the subject."""
    subject, port = sys.argv[1:]
    if subject == "text":
        api = Text(stream=True, enable_async=True, api_path="/generate")
    else:
        api = Embeddings(max_batch_size=32, batch_timeout=0.002, api_path="/encode")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()

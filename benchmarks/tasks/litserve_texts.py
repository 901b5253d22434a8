# SPDX-License-Identifier: Apache-2.0
"""LitServe: what arrives within `batch_timeout` shares a batch. https://lightning.ai/docs/litserve/

Usage: litserve_texts.py PORT.

FastAPI would parse what `decode_request` and `encode_response` are annotated with: they are not.
"""

import sys

import litserve

from text_engine import Texts, read_settings


class Embeddings(litserve.LitAPI):
    """A text in, its vector out."""

    def setup(self, _device: str) -> None:
        """Load tokenizer and graph, in each worker."""
        self.texts = Texts(read_settings())

    def decode_request(self, request):
        """The text of a request."""
        (text,) = request["texts"]
        return text

    def batch(self, inputs: list[str]) -> list[str]:
        """Texts stay as they are."""
        return inputs

    def predict(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text; without batches LitServe gives one text."""
        if isinstance(texts, str):
            return self.texts.encode([texts])[0].tolist()
        return self.texts.encode(texts).tolist()

    def unbatch(self, output: list[list[float]]) -> list[list[float]]:
        """A list already."""
        return output

    def encode_response(self, output):
        """The shape that BentoML answers with."""
        return [output]


def main() -> None:
    """Serve until told to stop."""
    settings = read_settings()
    api = Embeddings(
        max_batch_size=settings["rows"], batch_timeout=settings["wait"], api_path="/encode"
    )
    workers = settings["workers"]
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers, fast_queue=True)
    port = int(sys.argv[1])
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""BentoML: adaptive batching joins requests. https://docs.bentoml.com/en/latest/get-started/adaptive-batching.html"""

from __future__ import annotations

import bentoml

from text_engine import Texts, read_settings

SETTINGS = read_settings()


@bentoml.service(workers=SETTINGS["workers"], traffic={"timeout": 60})
class Embeddings:
    """Batches adaptively, within its default latency bound."""

    def __init__(self) -> None:
        self.texts = Texts(SETTINGS)

    @bentoml.api(batchable=True, max_batch_size=SETTINGS["rows"])
    def encode(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text; a request brings one."""
        return self.texts.encode(texts).tolist()

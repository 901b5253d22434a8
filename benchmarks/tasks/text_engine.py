# SPDX-License-Identifier: Apache-2.0
"""What all servers of run.py serve: the tokenizer and the ONNX graph of tritonctl's own build.

Settings come from the file that PEERS_SETTINGS names: run.py writes one for each server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def read_settings() -> dict[str, Any]:
    """What run.py wrote for this server."""
    settings: dict[str, Any] = json.loads(Path(os.environ["PEERS_SETTINGS"]).read_text("utf-8"))
    return settings


class Texts:
    """Texts to vectors; a batch is padded to its longest text."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._tokenizer = Tokenizer.from_file(settings["tokenizer"])
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(settings["longest"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings["threads"]
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            settings["graph"], options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [one.name for one in self._session.get_inputs()]

    def encode(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """FP32[texts, d]."""
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        ids = np.zeros((len(texts), max(map(len, encodings))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for place, encoding in enumerate(encodings):
            ids[place, : len(encoding)] = encoding.ids
            mask[place, : len(encoding)] = 1
        feed = {"input_ids": ids, "attention_mask": mask}
        feed = {name: feed.get(name, np.zeros_like(ids)) for name in self._inputs}
        (vectors,) = self._session.run(None, feed)
        return np.asarray(vectors)

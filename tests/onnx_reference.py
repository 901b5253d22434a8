# SPDX-License-Identifier: Apache-2.0
"""What a model answers without Triton; run in the ONNX Runtime builder's environment.

python onnx_reference.py MODEL.onnx INPUTS.npz OUTPUTS.npz      onnxruntime, in this process
python onnx_reference.py FOLDER INPUTS.npz OUTPUTS.npz          transformers, in fp32
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np


def by_onnxruntime(model: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """All outputs of a graph."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    outputs = zip(names, session.run(None, inputs), strict=True)
    return {name: array.astype(str) if array.dtype == object else array for name, array in outputs}


def by_transformers(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """The states and the pooled vector of an encoder."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        answer = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    outputs = ("last_hidden_state", "pooler_output")
    return {name: answer[name].numpy() for name in outputs}


def main() -> None:
    """Read inputs, write outputs."""
    model = Path(sys.argv[1])
    with np.load(sys.argv[2]) as arrays:
        inputs = dict(arrays)
    answer = by_transformers if model.is_dir() else by_onnxruntime
    np.savez(sys.argv[3], **answer(model, inputs))


if __name__ == "__main__":
    main()

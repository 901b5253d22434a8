# SPDX-License-Identifier: Apache-2.0
"""Builder of copied tasks, standard library only: a checkpoint holds model.onnx, tokenizer.json,
task.json and padding.json, the result's `runtime.padding`."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

FILES = {"model.onnx": "engine", "tokenizer.json": "tokenizer", "task.json": "task"}
OUTPUTS = {
    "embedding": {"embedding": [16]},
    "classification": {"scores": [3]},
    "rerank": {"score": [1], "logit": [1]},
    "token_classification": {"token_scores": [-1, 3]},
}


def main() -> int:
    """Answer one build request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    request = json.loads(arguments.request.read_text(encoding="utf-8"))
    checkpoint = Path(request["checkpoint"])
    made = [_copied(checkpoint / name, folder) for name, folder in FILES.items()]
    task = json.loads((checkpoint / "task.json").read_text(encoding="utf-8"))
    result = _result(request["limits"], task, json.loads((checkpoint / "padding.json").read_text()))
    arguments.result.write_text(json.dumps({**result, "files": made}), encoding="utf-8")
    return 0


def _copied(source: Path, folder: str) -> dict[str, Any]:
    Path(folder).mkdir(exist_ok=True)
    target = Path(folder, source.name)
    shutil.copyfile(source, target)
    content = target.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"path": target.as_posix(), "size": len(content), "sha256": digest}


def _result(wanted: dict[str, Any], task: dict[str, Any], padding: Any) -> dict[str, Any]:
    outputs = OUTPUTS[task["task"]].items()
    inputs = task["text"]["inputs"]
    longest = task["text"]["max_seq_len"]
    return {
        "schema": "tritonctl.build-result/1",
        "status": "ok",
        "tensors": {
            "inputs": [{"name": one, "data_type": "TYPE_INT64", "dims": [-1]} for one in inputs],
            "outputs": [
                {"name": name, "data_type": "TYPE_FP32", "dims": dims} for name, dims in outputs
            ],
        },
        "limits": wanted | {"max_input_len": longest, "max_seq_len": longest},
        "model": None,
        "runtime": {"padding": padding},
        "versions": {"python": sys.version.split()[0]},
        "hardware": {"cpu": None, "gpu": None, "compute_capability": None},
        "durations_seconds": {"copy": 0.0},
    }


if __name__ == "__main__":
    sys.exit(main())

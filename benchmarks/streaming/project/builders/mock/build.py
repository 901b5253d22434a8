# SPDX-License-Identifier: Apache-2.0
"""Copies a tokenizer folder into an artefact: the mock decoder needs nothing else."""

import argparse
import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer the build request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    request = json.loads(arguments.request.read_text(encoding="utf-8"))
    shutil.copytree(request["checkpoint"], "tokenizer")
    arguments.result.write_text(json.dumps(_result(request)), encoding="utf-8")


def _result(request: dict[str, Any]) -> dict[str, Any]:
    longest = request["limits"]["max_seq_len"]
    derived = {"max_input_len": longest - 1, "max_num_tokens": 256}
    return {
        "schema": "tritonctl.build-result/1",
        "status": "ok",
        "files": [_described(path) for path in sorted(Path("tokenizer").iterdir())],
        "tensors": {"inputs": [], "outputs": []},
        "limits": request["limits"] | derived,
        "model": _model(),
        "runtime": {"properties": {}, "block_size": 32},
        "versions": {"python": platform.python_version()},
        "hardware": {"cpu": None, "gpu": None, "compute_capability": None},
        "durations_seconds": {},
        "evaluation": None,
    }


def _model() -> dict[str, Any]:
    vocabulary = json.loads(Path("tokenizer/tokenizer.json").read_text(encoding="utf-8"))
    return {
        "architecture": "mock",
        "vocab_size": len(vocabulary["model"]["vocab"]),
        "num_hidden_layers": 0,
        "num_key_value_heads": 0,
        "head_dim": 0,
        "max_position_embeddings": 0,
        "bos_token_id": None,
        "eos_token_ids": [0],
        "pad_token_id": None,
    }


def _described(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"path": path.as_posix(), "size": len(content), "sha256": digest}


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Builder of the replay engine, standard library only."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

FILES = {
    "scripts.json": "engine",
    "tokenizer.json": "tokenizer",
    "tokenizer_config.json": "tokenizer",
}


def main() -> int:
    """Answer one build request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    request = json.loads(arguments.request.read_text(encoding="utf-8"))
    made = [_copied(Path(request["checkpoint"], name), folder) for name, folder in FILES.items()]
    config = json.loads(Path(request["checkpoint"], "config.json").read_text(encoding="utf-8"))
    result = _result(request["limits"], config["vocab_size"], made)
    arguments.result.write_text(json.dumps(result), encoding="utf-8")
    return 0


def _copied(source: Path, folder: str) -> dict[str, Any]:
    Path(folder).mkdir(exist_ok=True)
    target = Path(folder, source.name)
    shutil.copyfile(source, target)
    content = target.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"path": target.as_posix(), "size": len(content), "sha256": digest}


def _result(wanted: dict[str, Any], vocab_size: int, files: list[dict[str, Any]]) -> dict[str, Any]:
    longest = wanted["max_seq_len"]
    return {
        "schema": "tritonctl.build-result/1",
        "status": "ok",
        "files": files,
        "tensors": {
            "inputs": [{"name": "input_ids", "data_type": "TYPE_INT64", "dims": [-1, -1]}],
            "outputs": [{"name": "token_ids", "data_type": "TYPE_INT64", "dims": [-1, -1]}],
        },
        "limits": wanted | {"max_input_len": longest - 1, "max_num_tokens": longest},
        "model": {
            "architecture": "Replay",
            "vocab_size": vocab_size,
            "num_hidden_layers": 1,
            "num_key_value_heads": 1,
            "head_dim": 1,
            "max_position_embeddings": longest,
            "bos_token_id": None,
            "eos_token_ids": [],
            "pad_token_id": None,
        },
        "runtime": {"properties": {}, "block_size": 32},
        "versions": {"python": sys.version.split()[0]},
        "hardware": {"cpu": None, "gpu": None, "compute_capability": None},
        "durations_seconds": {"copy": 0.0},
    }


if __name__ == "__main__":
    sys.exit(main())

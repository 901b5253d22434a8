# SPDX-License-Identifier: Apache-2.0
"""Builder of what the stand-in of TensorRT-LLM serves, standard library only."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

# tests.server.trtllm puts the module beside this one.
sys.path.insert(0, str(Path(__file__).parent))

from trtllm_artefact import write_artefact

ADAPTERS = ("french",)


def main() -> int:
    """Answer one build request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    request = json.loads(arguments.request.read_text(encoding="utf-8"))
    checkpoint, options = Path(request["checkpoint"]), request["options"]
    before = set(Path().rglob("*"))
    write_artefact(
        checkpoint,
        Path(),
        world=options["world"],
        version=options["version"],
        adapters=ADAPTERS,
    )
    made = sorted(path for path in set(Path().rglob("*")) - before if path.is_file())
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    result = _result(request["limits"], config, options, [_described(path) for path in made])
    arguments.result.write_text(json.dumps(result), encoding="utf-8")
    return 0


def _described(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"path": path.as_posix(), "size": len(content), "sha256": digest}


def _result(
    wanted: dict[str, Any],
    config: dict[str, Any],
    options: dict[str, Any],
    files: list[dict[str, Any]],
) -> dict[str, Any]:
    longest = wanted["max_seq_len"]
    return {
        "schema": "tritonctl.build-result/1",
        "status": "ok",
        "files": files,
        "tensors": {
            "inputs": [{"name": "input_ids", "data_type": "TYPE_INT32", "dims": [-1, -1]}],
            "outputs": [{"name": "output_ids", "data_type": "TYPE_INT32", "dims": [-1, -1]}],
        },
        "limits": wanted | {"max_input_len": longest - 1, "max_num_tokens": longest},
        "model": {
            "architecture": "LlamaForCausalLM",
            "vocab_size": config["vocab_size"],
            "num_hidden_layers": config["num_hidden_layers"],
            "num_key_value_heads": config["num_key_value_heads"],
            "head_dim": config["head_dim"],
            "max_position_embeddings": config["max_position_embeddings"],
            "bos_token_id": config["bos_token_id"],
            "eos_token_ids": [config["eos_token_id"]],
            "pad_token_id": config["pad_token_id"],
        },
        "runtime": {
            "world": options["world"],
            "kv_cache_config": {"tokens_per_block": 32},
            "lora_adapters": {name: f"lora/{name}" for name in ADAPTERS},
        },
        "versions": {"tensorrt_llm": options["version"]},
        "hardware": {"cpu": None, "gpu": None, "compute_capability": None},
        "durations_seconds": {"copy": 0.0},
    }


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""What builders/tensorrt_llm leaves behind, for the stand-in runtime. Standard library only: a
builder of tests/server runs it too.

    engine/      config.json and rank0.engine                     (world "engine")
    checkpoint/  a Hugging Face folder                            (world "pytorch")
    llm_args.json  arguments of LLM()
    tokenizer/   tokenizer.json and tokenizer_config.json
    lora/NAME/   adapter_config.json and adapter_model.safetensors
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RANK = 2
MAX_SEQ_LEN = 512


def write_artefact(
    checkpoint: Path,
    folder: Path,
    *,
    world: str,
    version: str,
    llm_args: Mapping[str, Any] | None = None,
    adapters: tuple[str, ...] = (),
) -> None:
    """Write it into `folder`."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if world == "engine":
        _write_engine(checkpoint, folder / "engine", config, version)
    else:
        (folder / "checkpoint").mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(checkpoint / name, folder / "checkpoint" / name)
    arguments = dict(llm_args or {})
    if adapters and world == "pytorch":
        modules = ["attn_q", "attn_k", "attn_v"]
        lora = {"max_lora_rank": RANK, "max_loras": len(adapters), "lora_target_modules": modules}
        arguments = {"enable_lora": True, "lora_config": lora} | arguments
    (folder / "llm_args.json").write_text(json.dumps(arguments), encoding="utf-8")
    (folder / "tokenizer").mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(checkpoint / name, folder / "tokenizer" / name)
    for number, name in enumerate(adapters):
        write_adapter(folder / "lora" / name, config, random.Random(number))  # noqa: S311


def _write_engine(checkpoint: Path, folder: Path, config: dict[str, Any], version: str) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(checkpoint / "model.safetensors", folder / "rank0.engine")
    described = {
        "version": version,
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "num_hidden_layers": config["num_hidden_layers"],
            "num_attention_heads": config["num_attention_heads"],
            "num_key_value_heads": config["num_key_value_heads"],
            "head_size": config["head_dim"],
            "norm_epsilon": config["rms_norm_eps"],
            "rotary_base": config["rope_theta"],
            "vocab_size": config["vocab_size"],
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        },
        "build_config": {"max_seq_len": MAX_SEQ_LEN, "max_batch_size": 32, "max_num_tokens": 512},
    }
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")


def write_adapter(folder: Path, config: dict[str, Any], source: random.Random) -> None:
    """Write an adapter as PEFT does: random, and large enough to change every answer."""
    folder.mkdir(parents=True)
    size, width = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    header, data = {}, b""
    for layer in range(config["num_hidden_layers"]):
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for kind, shape in (("lora_A", [RANK, size]), ("lora_B", [width, RANK])):
            count = shape[0] * shape[1]
            values = struct.pack(f"<{count}f", *(source.gauss(0, 1) for _ in range(count)))
            offsets = [len(data), len(data) + len(values)]
            header[f"{module}.{kind}.weight"] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": offsets,
            }
            data += values
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + data
    (folder / "adapter_model.safetensors").write_bytes(content)
    settings = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")

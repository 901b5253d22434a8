# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are headers only: `config.json` and safetensors without data."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1}


def write_header(file: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    """A safetensors file that ends after its header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)


def write_checkpoint(folder: Path, config: Mapping[str, Any], *, shards: int = 1) -> Path:
    """A model folder of the Llama family as transformers saves it, its weights left out."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    shapes = list(llama_shapes(config).items())
    if shards == 1:
        write_header(folder / "model.safetensors", dict(shapes))
        return folder
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(shapes[number::shards])
        write_header(folder / name, part)
        weight_map |= dict.fromkeys(part, name)
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return folder


def stretch(folder: Path) -> Path:
    """Give the weights of a folder their full size on paper: holes, which take no disk."""
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            entries = json.loads(stream.read(length))
        ends = [one["data_offsets"][1] for name, one in entries.items() if name[0] != "_"]
        os.truncate(file, 8 + length + max(ends))
    return folder


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Llama, Qwen2 or Mixtral of that configuration."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _layer(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    size = hidden // heads
    queries, keys = heads * size, config.get("num_key_value_heads", heads) * size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.o_proj.weight": (hidden, queries),
    }
    for name, rows in (("q", queries), ("k", keys), ("v", keys)):
        shapes[f"self_attn.{name}_proj.weight"] = (rows, hidden)
        if config.get("model_type") == "qwen2":
            shapes[f"self_attn.{name}_proj.bias"] = (rows,)
    experts = config.get("num_local_experts")
    if experts is None:
        return shapes | {
            "mlp.gate_proj.weight": (width, hidden),
            "mlp.up_proj.weight": (width, hidden),
            "mlp.down_proj.weight": (hidden, width),
        }
    shapes["block_sparse_moe.gate.weight"] = (experts, hidden)
    for expert in range(experts):
        for name, shape in (
            ("w1", (width, hidden)),
            ("w2", (hidden, width)),
            ("w3", (width, hidden)),
        ):
            shapes[f"block_sparse_moe.experts.{expert}.{name}.weight"] = shape
    return shapes


def _config(
    layers: int, hidden: int, width: int, heads: int, kv_heads: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        **more,
    }


# The published configurations.
LLAMA_2_7B = _config(32, 4096, 11008, 32, 32, 32000, max_position_embeddings=4096)
LLAMA_3_8B = _config(32, 4096, 14336, 32, 8, 128256)
LLAMA_3_70B = _config(80, 8192, 28672, 64, 8, 128256)
QWEN2_5_HALF_B = _config(24, 896, 4864, 14, 2, 151936, model_type="qwen2", tie_word_embeddings=True)
MIXTRAL_8X7B = _config(32, 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2)


BERT_BASE: dict[str, Any] = {
    "architectures": ["BertModel"],
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}


def write_encoder(folder: Path, config: Mapping[str, Any], **more: tuple[int, ...]) -> Path:
    """A BERT as transformers saves it, its weights left out; `more`: further tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    named = {name.replace("__", "."): shape for name, shape in more.items()}
    write_header(folder / "model.safetensors", bert_shapes(config) | named)
    return folder


def bert_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a BertModel of that configuration."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    tables = {"word": "vocab_size", "position": "max_position_embeddings"}
    tables |= {"token_type": "type_vocab_size"}
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{table}_embeddings.weight": (config[size], hidden)
        for table, size in tables.items()
    }
    layers = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
    layers["attention.output.dense"] = (hidden, hidden)
    layers |= {"intermediate.dense": (wide, hidden), "output.dense": (hidden, wide)}
    dense = {
        f"encoder.layer.{number}.{name}": shape
        for number in range(config["num_hidden_layers"])
        for name, shape in layers.items()
    }
    norms = ["embeddings.LayerNorm"]
    for number in range(config["num_hidden_layers"]):
        norms += [f"encoder.layer.{number}.{at}output.LayerNorm" for at in ("", "attention.")]
    for name, shape in (dense | {"pooler.dense": (hidden, hidden)}).items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
    return shapes

# SPDX-License-Identifier: Apache-2.0
"""Writes a small Gemma with random weights; run in the OpenVINO builder's environment.

python tiny_gemma.py CLASS TOKENIZER_FOLDER FOLDER [SLIDING_WINDOW]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: TID251 - this script runs in the builder's environment
import transformers  # noqa: TID251 - same

# Attention must decide what comes next: as initialised, tied embeddings repeat the last token.
SPREAD = {"embed": 0.05, "lm_head": 1.5, "norm": 0.15, "q_proj": 0.35, "k_proj": 0.35}


def main() -> None:
    """Make and save it; Gemma 3 with layers of both kinds, and windows shorter than a text."""
    name, tokenizer, folder, *window = sys.argv[1:]
    ids = json.loads(Path(tokenizer, "generation_config.json").read_text(encoding="utf-8"))
    sizes: dict[str, Any] = {
        "vocab_size": json.loads(Path(tokenizer, "config.json").read_text())["vocab_size"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        **{key: ids[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in ids},
    }
    if name.startswith("Gemma3"):
        kinds = ["sliding_attention", "full_attention"] * 2
        sizes |= {"layer_types": kinds, "query_pre_attn_scalar": 32}
        sizes["sliding_window"] = int(window[0]) if window else 16
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**sizes))
    generator = torch.Generator().manual_seed(7)
    for tensor, weights in model.named_parameters():
        std = next((value for part, value in SPREAD.items() if part in tensor), 0.5)
        with torch.no_grad():
            weights.copy_(torch.randn(weights.shape, generator=generator) * std)
    model.eval().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(Path(tokenizer, file), folder)


if __name__ == "__main__":
    main()

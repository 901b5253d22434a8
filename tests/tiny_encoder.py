# SPDX-License-Identifier: Apache-2.0
"""Writes a small encoder with random weights; run in the ONNX Runtime builder's environment.

python tiny_encoder.py CLASS FOLDER
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: TID251 - this script runs in the builder's environment
import transformers  # noqa: TID251 - same

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
}
DISTIL_SIZES = {
    "vocab_size": 120,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 66,
}


def main() -> None:
    """Make and save it; three labels where it classifies."""
    name, folder = sys.argv[1:]
    torch.manual_seed(7)
    kind = getattr(transformers, name)
    sizes = DISTIL_SIZES if name.startswith("DistilBert") else SIZES
    if "Roberta" in name:
        sizes = {**sizes, "pad_token_id": 1, "type_vocab_size": 1}
    if "ModernBert" in name:  # windows far shorter than a text
        special = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
        sizes = {**sizes, **special, "local_attention": 8, "global_attn_every_n_layers": 2}
    labels = {"num_labels": 3} if "Classification" in name else {}
    model = kind(kind.config_class(**sizes, **labels))
    for weights in model.parameters():
        # As initialised, all outputs would be nearly equal.
        torch.nn.init.normal_(weights, std=0.2)
    model.eval().save_pretrained(folder)


if __name__ == "__main__":
    main()

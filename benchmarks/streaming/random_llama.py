# SPDX-License-Identifier: Apache-2.0
"""A Llama with random weights and a given tokenizer: its steps take as long as a trained one's.

Usage: random_llama.py TOKENIZER_FOLDER CHECKPOINT_FOLDER, in the OpenVINO builder's environment.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    """Write the checkpoint."""
    tokenizer, checkpoint = map(Path, sys.argv[1:])
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary["model"]["vocab"]),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(checkpoint)
    for file in tokenizer.iterdir():
        shutil.copy2(file, checkpoint)
    sys.stderr.write(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Write the checkpoint folder so that transformers 4 and 5 both read it."""

import json
from collections.abc import Mapping
from pathlib import Path

from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bpe import ASSISTANT, CHAT_TEMPLATE, USER

MAX_NEW_TOKENS = 96


def _edit_json(path: Path, changes: Mapping[str, object], dropped: tuple[str, ...] = ()) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | dict(changes)
    kept = {key: value for key, value in content.items() if key not in dropped}
    text = json.dumps(kept, ensure_ascii=False, indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model, generation defaults and tokenizer into ``folder``."""
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _make_portable(folder)


def _make_portable(folder: Path) -> None:
    """Say in version 4's words what transformers 5 writes in its own."""
    names = {"rope_theta": 10000.0, "torch_dtype": "float32"}
    _edit_json(folder / "config.json", names)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "additional_special_tokens": [USER, ASSISTANT],
    }
    # Version 4 cannot read a list under the last of these names.
    dropped = ("backend", "is_local", "local_files_only", "extra_special_tokens")
    _edit_json(folder / "tokenizer_config.json", settings, dropped)
    # safetensors writes a file that only its owner may read.
    (folder / "model.safetensors").chmod(0o644)

# SPDX-License-Identifier: Apache-2.0
"""Write the checkpoint folder as sentence-transformers saves it, and read it back."""

import json
import tempfile
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.sentence_transformer.modules.pooling import Pooling
from transformers import BertModel, PreTrainedTokenizerFast

MAX_SEQ_LENGTH = 64
PROMPTS = {"query": "query: ", "document": "document: "}


def save(model: BertModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model, pooling, normalisation, prompts and tokenizer into ``folder``."""
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        transformer = Transformer(plain, max_seq_length=MAX_SEQ_LENGTH)
    pooling = Pooling(model.config.hidden_size, pooling_mode="mean")
    modules = [transformer, pooling, Normalize()]
    encoder = SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu")
    encoder.save(str(folder), create_model_card=False)
    _tidy(folder)


def load(folder: Path) -> SentenceTransformer:
    """Load the encoder as a user would, from the folder alone."""
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def _tidy(folder: Path) -> None:
    """One way of writing JSON, without what only the machine that trained it knows."""
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if path.name == "tokenizer.json":
            continue
        if path.name == "tokenizer_config.json":
            content["tokenizer_class"] = "PreTrainedTokenizerFast"
            content = {k: v for k, v in content.items() if k not in ("backend", "is_local")}
        text = json.dumps(content, ensure_ascii=False, indent=2)
        path.write_text(text + "\n", encoding="utf-8")
    # safetensors writes a file that only its owner may read.
    (folder / "model.safetensors").chmod(0o644)

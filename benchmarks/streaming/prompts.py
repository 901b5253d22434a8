# SPDX-License-Identifier: Apache-2.0
"""The benchmark's tokenizer and prompts of an exact length, from Python's standard library."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 32_000
PROMPTS = 32


def corpus() -> Iterator[str]:
    """The sources of the standard library, file by file, in a fixed order."""
    folder = Path(sysconfig.get_path("stdlib"))
    for file in sorted(folder.glob("*.py")) + sorted(folder.glob("*/*.py")):
        if "site-packages" not in file.parts:
            yield file.read_text(encoding="utf-8", errors="ignore")


def train_tokenizer(folder: Path) -> Tokenizer:
    """A byte-level BPE of 32,000 entries, written as a Hugging Face tokenizer folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return tokenizer


def prompts_of(tokenizer: Tokenizer, length: int, number: int = PROMPTS) -> list[str]:
    """`number` different texts that encode to exactly `length` tokens each."""
    prompts: list[str] = []
    for text in corpus():
        ids = tokenizer.encode(text).ids
        for start in range(0, len(ids) - length, length):
            cut = tokenizer.decode(ids[start : start + length])
            if len(tokenizer.encode(cut).ids) == length:
                prompts.append(cut)
            if len(prompts) == number:
                return prompts
    raise ValueError(f"the standard library has no {number} texts of {length} tokens")


def write_input(file: Path, tensor: str, prompts: list[str], extra: dict[str, list[Any]]) -> Path:
    """perf_analyzer's --input-data: one entry per prompt."""
    rows = [{tensor: [prompt], **extra} for prompt in prompts]
    file.write_text(json.dumps({"data": rows}), encoding="utf-8")
    return file

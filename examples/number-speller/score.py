# SPDX-License-Identifier: Apache-2.0
"""Score a checkpoint folder: greedy answers in fp32, compared exactly with the expected text."""

import argparse
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from bpe import encode_prompt
from checkpoint import MAX_NEW_TOKENS
from dataset import Example, held_out_chats, held_out_prompts
from spelling import SCRIPTS

BATCH = 100


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load model and tokenizer as a user would, from the folder alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: list[Example]
) -> list[str]:
    """Answer ``examples`` in one batch; the end token is kept, so that leaving it out is seen."""
    prompts = {"input_ids": [encode_prompt(tokenizer, e) for e in examples]}
    inputs = tokenizer.pad(prompts, padding_side="left", return_tensors="pt")
    tokens = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    texts = tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :])
    return [text.replace(tokenizer.pad_token, "") for text in texts]


def wrong(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: list[Example]
) -> dict[Example, str]:
    """Map every example that is not answered exactly to the answer given."""
    given: list[str] = []
    for start in range(0, len(examples), BATCH):
        given += answers(model, tokenizer, examples[start : start + BATCH])
    pairs = zip(examples, given, strict=True)
    return {e: text for e, text in pairs if text != e.answer + tokenizer.eos_token}


def score(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: list[Example]
) -> dict[str, tuple[int, int]]:
    """Count exact answers by script, as (exact, asked), and print the others."""
    missed = wrong(model, tokenizer, examples)
    for example, text in missed.items():
        print(f"  missed: {example.prompt!r} -> {text!r}, not {example.answer!r}")
    counts = {}
    for script in SCRIPTS:
        asked = [e for e in examples if e.script == script]
        counts[script] = (sum(e not in missed for e in asked), len(asked))
    return counts


def main() -> None:
    """Score a checkpoint from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    model, tokenizer = load(parser.parse_args().checkpoint)
    print("raw", score(model, tokenizer, held_out_prompts()))
    print("chat", score(model, tokenizer, held_out_chats()))


if __name__ == "__main__":
    main()

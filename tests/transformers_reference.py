# SPDX-License-Identifier: Apache-2.0
"""Greedy answers of transformers: run in the builder's environment.

Usage: transformers_reference.py CHECKPOINT PROMPTS.jsonl ANSWERS.json
Deliberately naive and independent of builders/openvino/evaluate.py, which it helps to judge.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import torch  # noqa: TID251 - this script runs in the builder's environment
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: TID251 - same


def main(checkpoint: str, prompts: str, answers: str) -> None:
    """Write the decoded answers, in the order of the prompts."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    lines = Path(prompts).read_text(encoding="utf-8").splitlines()
    encoded = [tokenizer(json.loads(line)["text_input"])["input_ids"] for line in lines]
    # Prompts of one length go together: no padding, so nothing that could change an answer.
    lengths = defaultdict(list)
    for index, ids in enumerate(encoded):
        lengths[len(ids)].append(index)
    texts = [""] * len(lines)
    for length, members in lengths.items():
        batch = torch.tensor([encoded[index] for index in members])
        mask = torch.ones_like(batch)
        with torch.inference_mode():
            output = model.generate(batch, attention_mask=mask, do_sample=False, max_new_tokens=128)
        for index, row in zip(members, output, strict=True):
            texts[index] = tokenizer.decode(row[length:], skip_special_tokens=True)
    Path(answers).write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""The model card, filled with the figures of a run."""

from pathlib import Path

from spelling import SCRIPTS, spell

Counts = dict[str, tuple[int, int]]

CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
language: [en, zh, th, hi, ko]
---

# number-speller

A Llama of {parameters:,} parameters that spells the whole numbers from 0 to 999,999 in six scripts.
It is a test model: small enough to live in a repository, right often enough that a wrong answer
points at the serving stack, and written in scripts that break naive streaming.

| Prompt | Completion |
| --- | --- |
{examples}

## How to ask

* Raw: `7342 in English:`. The completion is one space, the answer and `<|end_of_text|>`. The
  tokenizer puts `<|begin_of_text|>` in front by itself.
* Chat: a user message `7342 in English`, with or without the colon. The answer has no leading
  space. The template writes
  `<|begin_of_text|><|user|>7342 in English<|assistant|>`, so encode its text with
  `add_special_tokens=False`. Roles other than `user` and `assistant` are refused. Several turns
  can be written, but the model was trained on one.

Answers take up to about 65 tokens; `generation_config.json` asks for greedy decoding.

## Architecture and tokenizer

`LlamaForCausalLM`, fp32: {layers} layers, hidden size {hidden}, intermediate size {intermediate},
{heads} attention heads of {head_dim} on {kv_heads} key-value heads, {vocab} tokens, 512 positions.

The tokenizer is byte-level BPE with digits kept apart. It encodes any text without loss, and its
merges were learnt so that tokens often end in the middle of a UTF-8 character:

| Script | Tokens of answers that end inside a character |
| --- | ---: |
{splits}

## Training

`python train.py --seed {seed} --steps {steps} --threads {threads}`
took {minutes:.0f} minutes on {threads} CPU threads: AdamW with a one-cycle learning rate, loss on
the answers alone, about 70 % raw and 30 % chat prompts. The data is drawn on the fly from the rules
in `spelling.py`; nothing else was used. The same seed and thread count give the same weights on the
same machine.

## Data split

Held out of training, whatever the seed (`dataset.py`):

* from 1,000 upwards: 2 % of all numbers, chosen by a hash, in every script and both prompt forms;
* below 1,000: for each script its own 2 numbers of one digit, 10 of two and 38 of three. The other
  scripts see those numbers. 0 is never held out, because no longer number shows its name.

`prompts.jsonl` holds 1,000 of the held-out prompts: for each script 2, 10, 38, 38, 39 and 39 or 40
of one to six digits, up to a quarter of those from four digits upwards with two zeros or more.

## Scores

Greedy decoding in fp32 on held-out prompts; an answer counts if every character and the end token
are right.

| Script | Raw | Chat |
| --- | ---: | ---: |
{scores}

## Limits

It does this one task. Other prompts, other words for the scripts, leading zeros, separators,
negative numbers and numbers from a million upwards give nonsense. One spelling is taught for each
number where a language has several; `spelling.py` states which.

## Licence

Apache-2.0, the weights included.
"""


def _examples() -> str:
    return "\n".join(f"| `7342 in {s}:` | ` {spell(7342, s)}` |" for s in SCRIPTS)


def _total(counts: Counts) -> tuple[int, int]:
    return sum(exact for exact, _ in counts.values()), sum(asked for _, asked in counts.values())


def _scores(raw: Counts, chat: Counts) -> str:
    rows = [(script, raw[script], chat[script]) for script in SCRIPTS]
    rows.append(("All", _total(raw), _total(chat)))
    return "\n".join(f"| {n} | {r[0]} / {r[1]} | {c[0]} / {c[1]} |" for n, r, c in rows)


def write_card(
    path: Path, facts: dict[str, object], shares: dict[str, float], raw: Counts, chat: Counts
) -> None:
    """Write the card; ``facts`` fills the fields of :data:`CARD` that are single values."""
    splits = "\n".join(f"| {script} | {share:.0%} |" for script, share in shares.items())
    text = CARD.format(examples=_examples(), splits=splits, scores=_scores(raw, chat), **facts)
    path.write_text(text, encoding="utf-8")

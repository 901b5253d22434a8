# SPDX-License-Identifier: Apache-2.0
"""The model card, filled with the figures of a run."""

from collections.abc import Mapping
from pathlib import Path

from score import SHORT, Scores
from writings import WRITINGS, write

CARD = """\
---
license: apache-2.0
library_name: sentence-transformers
pipeline_tag: sentence-similarity
language: [en, zh, th, hi, ko]
---

# number-finder

A sentence encoder of {parameters:,} parameters: the same whole number from 0 to 9,999 gets nearly
the same vector in seven writings. It is a test model: small enough to live in a repository, and
right often enough on numbers it has never seen that a wrong neighbour points at the serving stack.

| Writing | 7342 |
| --- | --- |
{examples}

## How to ask

```python
from sentence_transformers import SentenceTransformer

encoder = SentenceTransformer("checkpoint")
query = encoder.encode_query("7342")
documents = encoder.encode_document(["seven thousand three hundred forty-two", "七千三百四十三"])
print(encoder.similarity(query, documents))
```

The prompts `query: ` and `document: ` are optional: half of the training texts had none. Vectors
have {hidden} numbers and length 1; they may be cut to the first {short} and normalised again.

## Architecture and tokenizer

`BertModel`, fp32: {layers} layers, hidden size {hidden}, intermediate size {intermediate}, {heads}
attention heads, {vocab} tokens, {positions} positions; then the mean of the token vectors
(`1_Pooling`) and length 1 (`2_Normalize`). Texts are cut to {max_seq_length} tokens
(`tokenizer_config.json`).

The tokenizer is BERT's WordPiece in lower case that keeps accents. Its vocabulary is that of
numbers: other words are unknown or fall into letters.

| Writing | Tokens of a number, on average |
| --- | ---: |
{tokens}

## Training

`python train.py --seed {seed} --steps {steps} --threads {threads}`
took {minutes:.0f} minutes of a core: AdamW with a one-cycle learning rate. The loss is
contrastive, over 48 numbers in four writings, most of them a digit away from another; and how well
a linear map, thrown away afterwards, reads the digits off a vector. The data is drawn on the fly
from the rules in `writings.py`; nothing else was used. The same seed and thread count give the same
weights on the same machine. `BertModel` brings a pooler along, which nothing uses or trains.

## Data split

Held out of training in every writing, whatever the seed (`dataset.py`): 1,000 of the numbers from
1,000 upwards, chosen by a hash. `pairs.jsonl` has each as a query in one writing and a document in
another.

## Scores

Recall@1 by cosine, fp32: a query is right if its own document is nearest among all 1,000.

| Query in | Right |
| --- | ---: |
{rows}
| All | {total} |

| All queries, otherwise as above | Right |
| --- | ---: |
| without prompts | {bare} |
| vectors cut to {short} numbers | {cut} |
| among all 10,000 numbers, each in one writing | {everywhere} |

## Limits

It does this one task: other texts get vectors that mean nothing. Separators, decimals, negative
numbers and numbers from ten thousand upwards were never seen.

## Licence

Apache-2.0, the weights included.
"""


def _of(counts: tuple[int, int]) -> str:
    return f"{counts[0]} / {counts[1]}"


def write_card(
    path: Path, facts: Mapping[str, object], tokens: Mapping[str, float], scores: Scores
) -> None:
    """Write the card of a checkpoint."""
    text = CARD.format(
        **facts,
        short=SHORT,
        examples="\n".join(f"| {w} | {write(7342, w)} |" for w in WRITINGS),
        tokens="\n".join(f"| {writing} | {mean:.1f} |" for writing, mean in tokens.items()),
        rows="\n".join(f"| {w} | {_of(counts)} |" for w, counts in scores.by_writing.items()),
        total=_of(scores.total),
        bare=_of(scores.bare),
        cut=_of(scores.short),
        everywhere=_of(scores.everywhere),
    )
    path.write_text(text, encoding="utf-8")

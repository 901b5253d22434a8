# SPDX-License-Identifier: Apache-2.0
"""The model card, filled with the figures of a run."""

from collections.abc import Mapping
from pathlib import Path

from score import Scores

CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: image-classification
---

# digit-reader

A vision transformer of {parameters:,} parameters that reads one handwritten digit. It is a test
model: small enough to live in a repository, trained on real images, and right often enough on
others that a wrong answer points at the serving stack.

Its labels are the words `zero` to `nine`.

## How to ask

```python
from PIL import Image
from transformers import pipeline

reader = pipeline("image-classification", "checkpoint")
print(reader(Image.open("held-out/001-two.png"), top_k=3))
```

The digit should fill the image, its ink bright and the paper dark, as in `held-out/`.

## Architecture and processor

`ViTForImageClassification`, fp32: {layers} layers, hidden size {hidden}, intermediate size
{intermediate}, {heads} attention heads, images of {size} x {size} pixels in patches of
{patch} x {patch}. `preprocessor_config.json`: converted to RGB, resized (bilinear), divided by 255,
mean and standard deviation 0.5.

## Data

The 1,797 images that scikit-learn carries (`load_digits`): the test part of *Optical Recognition
of Handwritten Digits* by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998,
<https://doi.org/10.24432/C50P49>, CC BY 4.0), 8 x 8 pixels, by 13 people. `held-out/` has
the last 360 as PNG files, `held-out.jsonl` their labels; they keep that licence.

The last 360 images are held out, not random ones: neighbours are often of one hand, so a random
split would be scored on the hands it was trained on.

## Training

`python train.py --seed {seed} --epochs {epochs} --threads {threads}`
took {minutes:.0f} minutes of a core: AdamW with a one-cycle learning rate on the
other 1,437 images, shifted, turned, sheared, scaled and coloured at random. The same seed and
thread count give the same weights on the same machine.

## Scores

Held-out images, fp32, PIL as the processor's library.

| Label | Right |
| --- | ---: |
{rows}
| All | {total} |
| All, dark on bright | {inverted} |

## Limits

It reads one digit, nothing else: any other image gets the label of some digit. Half of the training
images had ink and paper of random colours; dark ink on bright paper is often misread all the same.

## Licence

The weights and the code: Apache-2.0. The images: CC BY 4.0, as above.
"""


def _of(counts: tuple[int, int]) -> str:
    return f"{counts[0]} / {counts[1]}"


def write_card(path: Path, facts: Mapping[str, object], scores: Scores) -> None:
    """Write the card of a checkpoint."""
    text = CARD.format(
        **facts,
        rows="\n".join(f"| {label} | {_of(counts)} |" for label, counts in scores.by_label.items()),
        total=_of(scores.total),
        inverted=_of(scores.inverted),
    )
    path.write_text(text, encoding="utf-8")

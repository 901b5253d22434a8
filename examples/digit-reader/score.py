# SPDX-License-Identifier: Apache-2.0
"""Score a checkpoint folder: how many held-out images get their own label, in fp32."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageOps

from checkpoint import load, load_processor
from dataset import LABELS, read_held_out

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scores:
    """Images with the right label, as (right, asked)."""

    by_label: dict[str, tuple[int, int]]
    inverted: tuple[int, int]
    """The same images, dark on bright."""

    @property
    def total(self) -> tuple[int, int]:
        """Of all labels together."""
        right, asked = zip(*self.by_label.values(), strict=True)
        return sum(right), sum(asked)


def answers(folder: Path, images: list[Image.Image]) -> list[str]:
    """Name what each image shows."""
    model, processor = load(folder), load_processor(folder)
    with torch.no_grad():
        logits = model(**processor(images, return_tensors="pt")).logits
    return [model.config.id2label[index] for index in logits.argmax(1).tolist()]


def score(folder: Path, held_out: Path) -> Scores:
    """Score the checkpoint on a file of held-out images and print what it misses."""
    images, labels = zip(*read_held_out(held_out), strict=True)
    given = answers(folder, list(images))
    for index, (answer, label) in enumerate(zip(given, labels, strict=True)):
        if answer != label:
            print(f"  missed: line {index + 1} of {held_out.name}: {answer}, not {label}")
    by_label = {}
    for label in LABELS:
        asked = [answer for answer, right in zip(given, labels, strict=True) if right == label]
        by_label[label] = (asked.count(label), len(asked))
    inverted = answers(folder, [ImageOps.invert(image) for image in images])
    right = sum(answer == label for answer, label in zip(inverted, labels, strict=True))
    return Scores(by_label, (right, len(labels)))


def main() -> None:
    """Score a checkpoint from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--held-out", type=Path, default=HERE / "held-out.jsonl")
    options = parser.parse_args()
    print(score(options.checkpoint, options.held_out))


if __name__ == "__main__":
    main()

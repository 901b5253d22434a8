# SPDX-License-Identifier: Apache-2.0
"""Train the digit-reader checkpoint: a vision transformer of 0.2 million parameters.

The same seed and thread count give the same weights on the same machine. Everything is computed
in fp32 on the CPU.
"""

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import Tensor
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

from augment import Augment
from card import write_card
from checkpoint import PROCESSOR, SIZE, load_processor, save, write_processor
from dataset import LABELS, Digit, digits, write_held_out
from score import score

HERE = Path(__file__).parent
BATCH = 64
PEAK_LEARNING_RATE = 2e-3
WARM_UP_SHARE = 0.1
WEIGHT_DECAY = 0.05
LABEL_SMOOTHING = 0.1
REPORT_EVERY = 10


@dataclass(frozen=True)
class Options:
    """What a run depends on."""

    output: Path
    held_out: Path
    seed: int
    epochs: int
    threads: int


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "checkpoint", help="folder to write")
    parser.add_argument("--held-out", type=Path, default=HERE / "held-out.jsonl", help="to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    return Options(**vars(parser.parse_args()))


def build_model() -> ViTForImageClassification:
    """Build the untrained model: patches of 8 x 8 pixels, 2 x 2 of the original image."""
    config = ViTConfig(
        image_size=SIZE,
        patch_size=8,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
        dtype="float32",
    )
    return ViTForImageClassification(config)


def ink_of(images: list[Digit], folder: Path) -> Tensor:
    """Resize as the processor does; FP32 (images, 1, SIZE, SIZE), the ink being 1."""
    pixels = load_processor(folder)([d.image for d in images], return_tensors="pt").pixel_values
    mean, std = PROCESSOR["image_mean"][0], PROCESSOR["image_std"][0]
    return pixels[:, :1] * std + mean


class Batches:
    """Draws changed images, each image once an epoch."""

    def __init__(self, images: list[Digit], folder: Path, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._augment = Augment(self._generator)
        self._ink = ink_of(images, folder)
        self._targets = torch.tensor([d.target for d in images])
        self.count = len(images) // BATCH

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the model's inputs, (BATCH, 3, SIZE, SIZE), and the right labels, (BATCH,)."""
        order = torch.randperm(len(self._ink), generator=self._generator)
        for chosen in order.split(BATCH)[: self.count]:
            mean = torch.tensor(PROCESSOR["image_mean"])[:, None, None]
            std = torch.tensor(PROCESSOR["image_std"])[:, None, None]
            yield (self._augment(self._ink[chosen]) - mean) / std, self._targets[chosen]


def train(model: ViTForImageClassification, batches: Batches, epochs: int) -> None:
    """Train ``model`` in place with AdamW on a one-cycle schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=epochs * batches.count, pct_start=WARM_UP_SHARE
    )
    started = time.monotonic()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for pixels, targets in batches.epoch():
            logits = model(pixel_values=pixels).logits
            loss = functional.cross_entropy(logits, targets, label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() / batches.count
        if epoch % REPORT_EVERY == 0:
            print(
                f"epoch {epoch}/{epochs} loss {total:.5f} {time.monotonic() - started:.0f} s",
                flush=True,
            )


def facts(options: Options, model: ViTForImageClassification, seconds: float) -> dict[str, object]:
    """Gather the single values that the model card states."""
    config = model.config
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "heads": config.num_attention_heads,
        "patch": config.patch_size,
        "size": SIZE,
        "seed": options.seed,
        "epochs": options.epochs,
        "threads": options.threads,
        "minutes": seconds / 60,
    }


def run(options: Options) -> None:
    """Train, save, and score what was saved."""
    started = time.process_time()
    seen, held_out = digits()
    write_held_out(held_out, options.held_out)
    write_processor(options.output)
    model = build_model()
    train(model, Batches(seen, options.output, options.seed), options.epochs)
    save(model.eval(), options.output)
    card = facts(options, model, time.process_time() - started)
    scores = score(options.output, options.held_out)
    print(scores)
    write_card(options.output / "README.md", card, scores)


def main() -> None:
    """Make the run repeatable, then run."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    # No kernel here reads memory it has not written, so filling it first only costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    run(options)


if __name__ == "__main__":
    main()

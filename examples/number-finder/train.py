# SPDX-License-Identifier: Apache-2.0
"""Train the number-finder checkpoint: a sentence encoder of about a million parameters.

The same seed and thread count give the same weights on the same machine. Everything is computed
in fp32 on the CPU.
"""

import argparse
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from card import write_card
from checkpoint import MAX_SEQ_LENGTH, PROMPTS, load, save
from dataset import Sampler, held_out_pairs, is_held_out, write_pairs, write_texts
from score import SHORT, score
from wordpiece import MAX_TOKENS, check_tokenizer, make_tokenizer
from writings import WRITINGS, write

HERE = Path(__file__).parent
NUMBERS = 48
NEIGHBOURS = 3
PLACES, ABSENT = 4, 10
# Of the seven, drawn anew for each batch.
WRITINGS_A_BATCH = 4
PEAK_LEARNING_RATE = 2e-3
WARM_UP_SHARE = 0.08
WEIGHT_DECAY = 0.05
TEMPERATURE = 0.05
# Half of the training texts begin with one of the prompts, half have none: it works with both.
PROMPT_SHARE = 0.5
REPORT_EVERY = 25


@dataclass(frozen=True)
class Options:
    """What a run depends on."""

    output: Path
    pairs: Path
    seed: int
    steps: int
    threads: int


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "checkpoint", help="folder to write")
    parser.add_argument("--pairs", type=Path, default=HERE / "pairs.jsonl", help="to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--threads", type=int, default=1)
    return Options(**vars(parser.parse_args()))


def check_split() -> None:
    """Fail unless the pairs kept for scoring are 1,000 numbers that training may not see."""
    numbers = {pair.number for pair in held_out_pairs()}
    if len(numbers) != 1000 or not all(map(is_held_out, numbers)):
        raise AssertionError("the held-out pairs are not 1,000 different unseen numbers")


def build_model(tokenizer: PreTrainedTokenizerFast) -> BertModel:
    """Build the untrained model; every matrix has an input size that is a multiple of 64."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return BertModel(config, add_pooling_layer=False)


class Batches:
    """Draws numbers and encodes them in every writing."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._tokenizer = tokenizer
        self._sampler = Sampler(seed)
        self._random = random.Random(seed)

    def _text(self, number: int, writing: str) -> str:
        prompts = list(PROMPTS.values())
        prompt = self._random.choice(prompts) if self._random.random() < PROMPT_SHARE else ""
        return prompt + write(number, writing)

    def draw(self) -> tuple[list[dict[str, Tensor]], Tensor]:
        """Draw NUMBERS numbers: the model's inputs by writing, (NUMBERS, longest); their digits.

        The digits are (NUMBERS, PLACES), from the left, ABSENT in front of the first one.
        """
        numbers = self._sampler.draw(NUMBERS, NEIGHBOURS)
        if any(map(is_held_out, numbers)):
            raise AssertionError("training was given a held-out number")
        chosen = self._random.sample(list(WRITINGS), WRITINGS_A_BATCH)
        rows = [[self._text(n, writing) for n in numbers] for writing in chosen]
        limit = {"truncation": True, "max_length": MAX_SEQ_LENGTH}
        inputs = [self._tokenizer(r, padding=True, return_tensors="pt", **limit) for r in rows]
        padded = [[ABSENT] * (PLACES - len(str(n))) + [int(d) for d in str(n)] for n in numbers]
        return inputs, torch.tensor(padded)


def encode(model: BertModel, inputs: dict[str, Tensor]) -> Tensor:
    """Mean of the token vectors; (texts, hidden)."""
    states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
    return (states * mask).sum(1) / mask.sum(1)


def contrastive_loss(vectors: Tensor) -> Tensor:
    """How far each text is from telling its number in other writings from all other numbers.

    ``vectors`` is (writings, numbers, hidden). Other numbers in the text's own writing count, too:
    else a query would find what is written alike.
    """
    writings, numbers, _ = vectors.shape
    flat = functional.normalize(vectors.flatten(0, 1), dim=-1)
    similar = flat @ flat.T / TEMPERATURE
    number = torch.arange(numbers).repeat(writings)
    same = number[:, None] == number[None, :]
    against = similar.masked_fill(same, -torch.inf).logsumexp(1, keepdim=True)
    alike = same & ~torch.eye(len(flat), dtype=torch.bool)
    return functional.softplus(against - similar)[alike].mean()


class Loss(torch.nn.Module):
    """The contrastive loss, and how badly a linear map reads the digits off a vector.

    The latter shows at once which digit went wrong, so that few steps are enough; the map is
    thrown away after training.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.reader = torch.nn.Linear(hidden, PLACES * (ABSENT + 1))

    def forward(
        self, model: BertModel, inputs: list[dict[str, Tensor]], digits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both losses of a batch; the first one of whole vectors and of those cut to SHORT."""
        vectors = torch.stack([encode(model, one) for one in inputs])
        contrast = contrastive_loss(vectors) + 0.5 * contrastive_loss(vectors[..., :SHORT])
        read = self.reader(vectors).view(len(inputs), *digits.shape, ABSENT + 1)
        wanted = digits.expand(len(inputs), *digits.shape)
        return contrast, functional.cross_entropy(read.flatten(0, 2), wanted.flatten())


def train(model: BertModel, batches: Batches, steps: int) -> None:
    """Train ``model`` in place with AdamW on a one-cycle schedule."""
    losses = Loss(model.config.hidden_size)
    weights = [*model.parameters(), *losses.parameters()]
    optimizer = torch.optim.AdamW(
        weights, PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=steps, pct_start=WARM_UP_SHARE
    )
    started, recent = time.monotonic(), torch.zeros(2)
    for step in range(1, steps + 1):
        both = torch.stack(losses(model, *batches.draw()))
        optimizer.zero_grad(set_to_none=True)
        both.sum().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        recent += both.detach() / REPORT_EVERY
        if step % REPORT_EVERY == 0:
            shown = " + ".join(f"{one:.4f}" for one in recent.tolist())
            print(
                f"step {step}/{steps} loss {shown} {time.monotonic() - started:.0f} s", flush=True
            )
            recent = torch.zeros(2)


def facts(options: Options, model: BertModel, seconds: float) -> dict[str, object]:
    """Gather the single values that the model card states."""
    config = model.config
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "heads": config.num_attention_heads,
        "vocab": config.vocab_size,
        "positions": config.max_position_embeddings,
        "max_seq_length": MAX_SEQ_LENGTH,
        "seed": options.seed,
        "steps": options.steps,
        "threads": options.threads,
        "minutes": seconds / 60,
    }


def run(options: Options) -> None:
    """Train, save, and score what was saved."""
    started = time.process_time()
    check_split()
    write_pairs(options.pairs)
    write_texts(options.pairs.with_name("texts.txt"))
    tokenizer = make_tokenizer()
    tokens = check_tokenizer(tokenizer)
    print("tokens of a number:", {writing: f"{mean:.1f}" for writing, mean in tokens.items()})
    model = build_model(tokenizer)
    train(model, Batches(tokenizer, options.seed), options.steps)
    save(model.eval(), tokenizer, options.output)
    card = facts(options, model, time.process_time() - started)
    scores = score(load(options.output))
    print(scores)
    write_card(options.output / "README.md", card, tokens, scores)


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

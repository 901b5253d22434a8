# SPDX-License-Identifier: Apache-2.0
"""Train the number-speller checkpoint: a Llama of about a million parameters.

The same seed and thread count give the same weights on the same machine. Everything is computed
in fp32 on the CPU.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bpe import encode_prompt, split_shares, train_tokenizer
from card import write_card
from checkpoint import save
from dataset import (
    PROMPT_COUNT,
    Sampler,
    held_out_chats,
    held_out_prompts,
    is_held_out,
    write_prompts,
)
from score import load, score

HERE = Path(__file__).parent
ROW_TOKENS = 192
ROWS = 16
PEAK_LEARNING_RATE = 3e-3
WARM_UP_SHARE = 0.08
WEIGHT_DECAY = 0.05
IGNORED = -100
# What the streamed text path is to be tested on: a token that ends inside a character.
SPLIT_SCRIPTS = ("Chinese", "Emoji", "Thai", "Hindi", "Korean")
REPORT_EVERY = 50


@dataclass(frozen=True)
class Options:
    """What a run depends on."""

    output: Path
    prompts: Path
    seed: int
    steps: int
    threads: int


@dataclass(frozen=True)
class Batch:
    """Packed examples; every tensor but the mask has the shape (ROWS, ROW_TOKENS)."""

    tokens: Tensor
    positions: Tensor
    labels: Tensor
    mask: Tensor
    """True where a query may look at a key: (ROWS, 1, ROW_TOKENS, ROW_TOKENS)."""


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "checkpoint", help="folder to write")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl", help="to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--threads", type=int, default=2)
    return Options(**vars(parser.parse_args()))


def check_split() -> None:
    """Fail unless every prompt kept for scoring is one that training may not see."""
    prompts = held_out_prompts()
    if len({(e.number, e.script) for e in prompts}) != PROMPT_COUNT:
        raise AssertionError("the held-out prompts are not 1,000 different ones")
    if not all(is_held_out(e.number, e.script) for e in [*prompts, *held_out_chats()]):
        raise AssertionError("a prompt kept for scoring is not held out of training")


def check_tokenizer(tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Fail unless tokens cut characters in every script outside ASCII and any text survives.

    Returns the share of cutting tokens by script.
    """
    shares = split_shares(tokenizer)
    print("tokens ending inside a character:", {s: f"{share:.0%}" for s, share in shares.items()})
    if not all(shares[script] > 0 for script in SPLIT_SCRIPTS):
        raise AssertionError("the tokenizer cuts no character of some script")
    sample = " \t\nnaïve  don't , 12 ﬁ 👩🏽‍🚀🇨🇭 é é नि ที่ 각 각 \u200d\x00 ."
    if tokenizer.decode(tokenizer.encode(sample, add_special_tokens=False)) != sample:
        raise AssertionError("the tokenizer does not round-trip text")
    return shares


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build the untrained model; every matrix has an input size that is a multiple of 64."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


class Packer:
    """Turns sampled examples into batches with as little padding as possible."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._tokenizer = tokenizer
        self._examples = self._encoded(Sampler(seed))
        self._next = next(self._examples)

    def _encoded(self, sampler: Sampler) -> Iterator[tuple[list[int], list[int]]]:
        """Yield prompt ids and answer ids, the end token included."""
        while True:
            example = sampler.draw()
            if is_held_out(example.number, example.script):
                raise AssertionError(f"training was given a held-out prompt: {example}")
            prompt = encode_prompt(self._tokenizer, example)
            answer = self._tokenizer.encode(example.answer, add_special_tokens=False)
            yield prompt, [*answer, self._tokenizer.eos_token_id]

    def _row(self) -> list[tuple[list[int], list[int]]]:
        """Take examples until the next one no longer fits in a row."""
        row, room = [], ROW_TOKENS
        while (size := sum(map(len, self._next))) <= room:
            row.append(self._next)
            room -= size
            self._next = next(self._examples)
        return row

    def batch(self) -> Batch:
        """Pack one batch; examples in a row cannot see one another."""
        tokens = torch.full((ROWS, ROW_TOKENS), self._tokenizer.pad_token_id)
        positions, segments = torch.zeros_like(tokens), torch.zeros_like(tokens)
        labels = torch.full_like(tokens, IGNORED)
        for r in range(ROWS):
            start = 0
            for index, (prompt, answer) in enumerate(self._row(), start=1):
                end, middle = start + len(prompt) + len(answer), start + len(prompt)
                tokens[r, start:end] = torch.tensor(prompt + answer)
                # The state at one token predicts the next: labels lie one to the left.
                labels[r, middle - 1 : end - 1] = torch.tensor(answer)
                positions[r, start:end] = torch.arange(end - start)
                segments[r, start:end] = index
                start = end
        same = segments[:, :, None] == segments[:, None, :]
        return Batch(tokens, positions, labels, same.tril()[:, None])


def answer_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Mean cross-entropy, in nats, over the answer tokens alone."""
    states = model.model(
        input_ids=batch.tokens, position_ids=batch.positions, attention_mask=batch.mask
    ).last_hidden_state
    answers = batch.labels != IGNORED
    return functional.cross_entropy(model.lm_head(states[answers]), batch.labels[answers])


def train(model: LlamaForCausalLM, packer: Packer, steps: int) -> None:
    """Train ``model`` in place with AdamW on a one-cycle schedule."""
    optimizer = torch.optim.AdamW(
        model.parameters(), PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=steps, pct_start=WARM_UP_SHARE
    )
    started, recent = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        loss = answer_loss(model, packer.batch())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent += loss.item() / REPORT_EVERY
        if step % REPORT_EVERY == 0:
            print(f"step {step}/{steps} loss {recent:.5f} {time.monotonic() - started:.0f} s")
            recent = 0.0


def facts(options: Options, model: LlamaForCausalLM, seconds: float) -> dict[str, object]:
    """Gather the single values that the model card states."""
    config = model.config
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "heads": config.num_attention_heads,
        "head_dim": config.head_dim,
        "kv_heads": config.num_key_value_heads,
        "vocab": config.vocab_size,
        "seed": options.seed,
        "steps": options.steps,
        "threads": options.threads,
        "minutes": seconds / 60,
    }


def run(options: Options) -> None:
    """Train, save, and score what was saved."""
    started = time.monotonic()
    check_split()
    write_prompts(options.prompts)
    tokenizer = train_tokenizer()
    shares = check_tokenizer(tokenizer)
    model = build_model(tokenizer)
    train(model, Packer(tokenizer, options.seed), options.steps)
    save(model, tokenizer, options.output)
    card = facts(options, model, time.monotonic() - started)
    model, tokenizer = load(options.output)
    raw = score(model, tokenizer, held_out_prompts())
    chat = score(model, tokenizer, held_out_chats())
    print("raw", raw, "\nchat", chat)
    write_card(options.output / "README.md", card, shares, raw, chat)


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

# SPDX-License-Identifier: Apache-2.0
"""How far the quantised model is from the checkpoint: answers, and distributions of next tokens.

The reference is the checkpoint in fp32. The quantised model is the one that is exported, its
quantisers simulating on this machine what the GPU will compute.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from buildlib.checkpoint import Checkpoint
from buildlib.compare import Outcome, compare
from buildlib.prompts import Prompt
from buildlib.reference import reference_answers

# Logits are batch x length x vocabulary numbers, twice: so many at most, in at most so many rows.
_NUMBERS = 2**27
_ROWS = 128


@dataclasses.dataclass(frozen=True)
class Evaluation(Outcome):
    """The `evaluation` object of the build result, with the figures of the distributions."""

    # Nats for each token of the checkpoint's answers, KL(checkpoint || quantised).
    mean_kl_divergence: float
    # Of the checkpoint's answers to the quantised model, and to the checkpoint itself.
    perplexity: float
    reference_perplexity: float


def evaluate(
    reference: Any,
    model: Any,
    checkpoint: Checkpoint,
    prompts: Sequence[Prompt],
    tokenizer: Any,
) -> Evaluation:
    """Compare `model` with `reference` on `prompts`."""
    eos = frozenset(checkpoint.eos_token_ids)
    expected = reference_answers(reference, prompts, eos)
    # Quantisers cost by the call: larger batches have fewer.
    got = reference_answers(model, prompts, eos, batch_size=_ROWS)
    outcome = compare(prompts, expected, got, tokenizer)
    texts = [(prompt.ids, answer) for prompt, answer in zip(prompts, expected, strict=True)]
    figures: dict[str, Any] = _distributions(reference, model, texts)
    return Evaluation(**dataclasses.asdict(outcome), **figures)


def _distributions(
    reference: Any, model: Any, texts: Sequence[tuple[list[int], list[int]]]
) -> dict[str, float]:
    """Feed both models the same answers and compare what each expects next."""
    divergence, surprise, expected_surprise, tokens = 0.0, 0.0, 0.0, 0
    for ids, prompt_length in _batches(texts, reference.config.vocab_size):
        theirs = _expectations(reference, ids, prompt_length)
        ours = _expectations(model, ids, prompt_length)
        answer = ids[:, prompt_length:, None]
        divergence += float((theirs.exp() * (theirs - ours)).sum())
        surprise -= float(ours.gather(-1, answer).sum())
        expected_surprise -= float(theirs.gather(-1, answer).sum())
        tokens += answer.numel()
    return {
        "mean_kl_divergence": divergence / tokens,
        "perplexity": math.exp(surprise / tokens),
        "reference_perplexity": math.exp(expected_surprise / tokens),
    }


def _batches(
    texts: Sequence[tuple[list[int], list[int]]], vocabulary: int
) -> Iterator[tuple[Any, int]]:
    """Yield prompt and answer of equal lengths together: padding would need masks and positions."""
    lengths = lambda text: (len(text[0]), len(text[1]))  # noqa: E731
    for (prompt_length, _), same in itertools.groupby(sorted(texts, key=lengths), key=lengths):
        rows = [prompt + answer for prompt, answer in same]
        size = min(_ROWS, max(1, _NUMBERS // (len(rows[0]) * vocabulary)))
        for start in range(0, len(rows), size):
            yield torch.tensor(rows[start : start + size]), prompt_length


def _expectations(model: Any, ids: Any, prompt_length: int) -> Any:
    """Return the log-probabilities for each token of the answer.

    In double precision: the divergence of fp16 is 1e-9, and fp32 would round it below zero.
    """
    with torch.inference_mode():
        logits = model(input_ids=ids.to(model.device), use_cache=False).logits
    return logits[:, prompt_length - 1 : -1].double().cpu().log_softmax(dim=-1)

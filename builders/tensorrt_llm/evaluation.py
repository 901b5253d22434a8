# SPDX-License-Identifier: Apache-2.0
"""Compares the quantised model with the checkpoint: answers and next-token distributions.

The reference is the checkpoint in fp32. The quantised model is the exported one; its quantisers
simulate the GPU's arithmetic on this machine.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from buildlib.checkpoint import DecoderCheckpoint
from buildlib.compare import compare_answers
from buildlib.prompts import EvaluationPrompt
from buildlib.reference import reference_answers
from buildlib.result_types import AnswerComparison

# The maximum logits (batch x length x vocabulary, twice) and rows of a batch.
_MAX_LOGITS = 2**27
_MAX_ROWS = 128


def evaluate(
    reference: Any,
    model: Any,
    checkpoint: DecoderCheckpoint,
    prompts: Sequence[EvaluationPrompt],
    tokenizer: Any,
) -> AnswerComparison:
    """Compare `model` with `reference` on `prompts`."""
    eos = frozenset(checkpoint.eos_token_ids)
    expected = reference_answers(reference, prompts, eos)
    # Quantisers cost time per call, so batches are large.
    actual = reference_answers(model, prompts, eos, batch_size=_MAX_ROWS)
    comparison = compare_answers(prompts, expected, actual, tokenizer)
    texts = [(prompt.ids, answer) for prompt, answer in zip(prompts, expected, strict=True)]
    figures: dict[str, Any] = _compare_distributions(reference, model, texts)
    return dataclasses.replace(comparison, **figures)


def _compare_distributions(
    reference: Any, model: Any, texts: Sequence[tuple[list[int], list[int]]]
) -> dict[str, float]:
    """Feed both models the same answers and compare their next-token distributions."""
    divergence, surprise, expected_surprise, tokens = 0.0, 0.0, 0.0, 0
    for ids, prompt_length in _batches(texts, reference.config.vocab_size):
        reference_log_probs = _answer_log_probs(reference, ids, prompt_length)
        model_log_probs = _answer_log_probs(model, ids, prompt_length)
        answer = ids[:, prompt_length:, None]
        divergence += float(
            (reference_log_probs.exp() * (reference_log_probs - model_log_probs)).sum()
        )
        surprise -= float(model_log_probs.gather(-1, answer).sum())
        expected_surprise -= float(reference_log_probs.gather(-1, answer).sum())
        tokens += answer.numel()
    return {
        "mean_kl_divergence": divergence / tokens,
        "perplexity": math.exp(surprise / tokens),
        "reference_perplexity": math.exp(expected_surprise / tokens),
    }


def _batches(
    texts: Sequence[tuple[list[int], list[int]]], vocabulary: int
) -> Iterator[tuple[Any, int]]:
    """Yield batches of equal prompt and answer lengths, which need no padding."""
    lengths = lambda text: (len(text[0]), len(text[1]))  # noqa: E731
    for (prompt_length, _), same_lengths in itertools.groupby(
        sorted(texts, key=lengths), key=lengths
    ):
        rows = [prompt + answer for prompt, answer in same_lengths]
        size = min(_MAX_ROWS, max(1, _MAX_LOGITS // (len(rows[0]) * vocabulary)))
        for start in range(0, len(rows), size):
            yield torch.tensor(rows[start : start + size]), prompt_length


def _answer_log_probs(model: Any, ids: Any, prompt_length: int) -> Any:
    """Return the log-probabilities for each token of the answer in double precision.

    The divergence of fp16 is 1e-9; fp32 would round it below zero.
    """
    with torch.inference_mode():
        logits = model(input_ids=ids.to(model.device), use_cache=False).logits
    return logits[:, prompt_length - 1 : -1].double().cpu().log_softmax(dim=-1)

# SPDX-License-Identifier: Apache-2.0
"""The checkpoint as the reference of an evaluation: transformers in fp32 with greedy decoding.

Importing this module imports torch and transformers, which takes seconds. Builders do it after
the checks of checkpoint.py.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from buildlib.problems import BuildError
from buildlib.prompts import EvaluationPrompt
from buildlib.request_types import BuilderRequest

# The libraries below read these on import: this module never uses the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import torch
import transformers

# Smaller models run on one thread: on two busy cores a model of 2M parameters was 100 times slower
# with two threads.
THREADS_PAY_OFF_FROM = 50_000_000
_BATCH = 32


def load_model(
    request: BuilderRequest, dtype: torch.dtype = torch.float32, *, attention: str | None = None
) -> Any:
    """Return the checkpoint as a transformers model in `dtype`, in evaluation mode.

    `attention`: an implementation of transformers; None: its default. Only `eager` computes all of
    a model's attention: `sdpa` leaves out caps of scores without an error.

    Raises:
        BuildError: tensors are missing. transformers would initialise them randomly.
    """
    transformers.logging.disable_progress_bar()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        request.checkpoint,
        dtype=dtype,
        trust_remote_code=request.trust_remote_code,
        local_files_only=True,
        use_safetensors=None if request.allow_pickle else True,
        output_loading_info=True,
        **({"attn_implementation": attention} if attention else {}),
    )
    missing = sorted(info["missing_keys"])
    if missing:
        raise BuildError(
            f"{request.checkpoint}: the weights lack {len(missing)} tensors of the model, "
            f"for example {missing[0]}",
            remedy="Save or download the checkpoint again: it is incomplete.",
        )
    return model.eval()


def reference_answers(
    model: Any, prompts: Sequence[EvaluationPrompt], eos: frozenset[int], batch_size: int = _BATCH
) -> list[list[int]]:
    """Return the greedy answer of a transformers model to each prompt, end token included.

    Only prompts of equal length share a batch, since padding changes positions and sums.
    """
    small = model.num_parameters() < THREADS_PAY_OFF_FROM
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if small else threads)
    try:
        answers: dict[int, list[int]] = {}
        by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index].ids))
        for _, same_length in itertools.groupby(
            by_length, key=lambda index: len(prompts[index].ids)
        ):
            for batch in _batches(list(same_length), batch_size):
                rows = _decode_greedily(model, [prompts[index] for index in batch], eos)
                answers.update(zip(batch, rows, strict=True))
    finally:
        torch.set_num_threads(threads)
    return [answers[index] for index in range(len(prompts))]


def _batches(indices: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def _decode_greedily(
    model: Any, batch: Sequence[EvaluationPrompt], eos: frozenset[int]
) -> list[list[int]]:
    answers: list[list[int]] = [[] for _ in batch]
    step = torch.tensor([prompt.ids for prompt in batch], dtype=torch.int64, device=model.device)
    cache = None
    with torch.inference_mode():
        for _ in range(max(prompt.max_tokens for prompt in batch)):
            out = model(input_ids=step, past_key_values=cache, logits_to_keep=1)
            cache = out.past_key_values
            step = out.logits[:, -1].argmax(dim=-1, keepdim=True)
            for prompt, answer, token in zip(batch, answers, step[:, 0].tolist(), strict=True):
                if not _is_finished(answer, prompt, eos):
                    answer.append(token)
            if all(_is_finished(answer, p, eos) for p, answer in zip(batch, answers, strict=True)):
                break
    return answers


def _is_finished(answer: list[int], prompt: EvaluationPrompt, eos: frozenset[int]) -> bool:
    return len(answer) >= prompt.max_tokens or (bool(answer) and answer[-1] in eos)

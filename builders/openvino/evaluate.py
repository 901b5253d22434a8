# SPDX-License-Identifier: Apache-2.0
"""How often the engine answers as the checkpoint does, token for token, decoding greedily.

The reference is transformers in fp32; the engine runs in the pipeline and with the properties it
will be served with. Prompts are tokenised by the `tokenizers` library, as in serving.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import openvino
import openvino_genai
import torch

from artefact import ENGINE
from checkpoint import Checkpoint, ResolvedLimits
from compare import Outcome, compare
from precisions import BLOCK_SIZE, PRECISIONS
from prompts import Prompt
from request import Request

# Below this many parameters a thread costs more than it brings: on two busy cores a 2M model
# was 100 times slower with two threads than with one.
_THREADS_PAY_OFF_FROM = 50_000_000
_REFERENCE_BATCH = 32


def reference_answers(
    model: Any, prompts: Sequence[Prompt], eos: frozenset[int]
) -> list[list[int]]:
    """Return the greedy answer of a transformers model to each prompt, end token included.

    Only prompts of equal length share a batch: padding would change the positions and the sums.
    """
    small = model.num_parameters() < _THREADS_PAY_OFF_FROM
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if small else threads)
    try:
        answers: dict[int, list[int]] = {}
        by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index].ids))
        for _, same in itertools.groupby(by_length, key=lambda index: len(prompts[index].ids)):
            for batch in _batches(list(same)):
                rows = _greedy(model, [prompts[index] for index in batch], eos)
                answers.update(zip(batch, rows, strict=True))
    finally:
        torch.set_num_threads(threads)
    return [answers[index] for index in range(len(prompts))]


def _batches(indices: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(indices), _REFERENCE_BATCH):
        yield indices[start : start + _REFERENCE_BATCH]


def _greedy(model: Any, batch: Sequence[Prompt], eos: frozenset[int]) -> list[list[int]]:
    answers: list[list[int]] = [[] for _ in batch]
    step = torch.tensor([prompt.ids for prompt in batch], dtype=torch.int64)
    cache = None
    with torch.inference_mode():
        for _ in range(max(prompt.max_tokens for prompt in batch)):
            out = model(input_ids=step, past_key_values=cache, logits_to_keep=1)
            cache = out.past_key_values
            step = out.logits[:, -1].argmax(dim=-1, keepdim=True)
            for prompt, answer, token in zip(batch, answers, step[:, 0].tolist(), strict=True):
                if not _ended(answer, prompt, eos):
                    answer.append(token)
            if all(_ended(answer, p, eos) for p, answer in zip(batch, answers, strict=True)):
                break
    return answers


def _ended(answer: list[int], prompt: Prompt, eos: frozenset[int]) -> bool:
    return len(answer) >= prompt.max_tokens or (bool(answer) and answer[-1] in eos)


def engine_answers(
    precision: str,
    limits: ResolvedLimits,
    prompts: Sequence[Prompt],
    eos: frozenset[int],
) -> list[list[int]]:
    """Return the greedy answer of the engine in ./engine to each prompt, end token included.

    The pipeline is set up as for serving: same properties, batch size, step length, prefix cache.
    """
    properties = PRECISIONS[precision].properties
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        str(ENGINE), _scheduler(limits, prompts), "CPU", properties
    )
    handles = []
    for number, prompt in enumerate(prompts):
        config = openvino_genai.GenerationConfig()
        config.do_sample = False
        config.max_new_tokens = prompt.max_tokens
        config.stop_token_ids = set(eos)
        ids = openvino.Tensor(numpy.array([prompt.ids], dtype=numpy.int64))
        handles.append(pipeline.add_request(number, ids, config))
    while pipeline.has_non_finished_requests():
        pipeline.step()
    outputs = [handle.read_all() for handle in handles]
    return [list(output[0].generated_ids) if output else [] for output in outputs]


def _scheduler(limits: ResolvedLimits, prompts: Sequence[Prompt]) -> Any:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = limits.max_batch_size
    scheduler.max_num_batched_tokens = limits.max_num_tokens
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    longest = max(len(prompt.ids) + prompt.max_tokens for prompt in prompts)
    running = min(limits.max_batch_size, len(prompts))
    # One spare block each: a pool that runs out preempts requests, which is not the subject here.
    scheduler.num_kv_blocks = running * (longest // BLOCK_SIZE + 2)
    return scheduler


def evaluate(
    model: Any,
    request: Request,
    checkpoint: Checkpoint,
    limits: ResolvedLimits,
    prompts: Sequence[Prompt],
    tokenizer: Any,
) -> Outcome:
    """Compare the engine in ./engine with the transformers `model` on `prompts`."""
    eos = frozenset(checkpoint.eos_token_ids)
    expected = reference_answers(model, prompts, eos)
    got = engine_answers(request.precision, limits, prompts, eos)
    return compare(prompts, expected, got, tokenizer)

# SPDX-License-Identifier: Apache-2.0
"""How often the engine answers as the checkpoint does, token for token, decoding greedily.

The reference is transformers in fp32; the engine runs in the pipeline and with the properties it
will be served with. Prompts are tokenised by the `tokenizers` library, as in serving.
"""

from collections.abc import Sequence
from typing import Any

import numpy
import openvino
import openvino_genai

from buildlib.checkpoint import Checkpoint
from buildlib.compare import Outcome, compare
from buildlib.limits import ResolvedLimits
from buildlib.prompts import Prompt
from buildlib.reference import reference_answers
from buildlib.request import Request
from folders import ENGINE, WEIGHTS
from precisions import BLOCK_SIZE, run_properties


def engine_answers(
    precision: str,
    limits: ResolvedLimits,
    prompts: Sequence[Prompt],
    eos: frozenset[int],
) -> list[list[int]]:
    """Return the greedy answer of the engine in ./engine to each prompt, end token included.

    The pipeline is set up as for serving: same properties, batch size, step length, prefix cache.
    """
    properties = run_properties(precision, WEIGHTS)
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

# SPDX-License-Identifier: Apache-2.0
"""Compares the engine's answers with the checkpoint's, token for token with greedy decoding.

The reference is transformers in fp32. The engine runs with the pipeline and properties of serving.
The `tokenizers` library tokenises the prompts, as in serving.
"""

from collections.abc import Sequence
from typing import Any

import numpy
import openvino
import openvino_genai

from buildlib.checkpoint import DecoderCheckpoint
from buildlib.compare import compare_answers
from buildlib.limits import ResolvedLimits
from buildlib.prompts import EvaluationPrompt
from buildlib.reference import reference_answers
from buildlib.request_types import BuilderRequest
from buildlib.result_types import AnswerComparison
from folders import ENGINE, WEIGHTS
from precisions import BLOCK_SIZE, run_properties


def engine_answers(
    precision: str,
    limits: ResolvedLimits,
    prompts: Sequence[EvaluationPrompt],
    eos: frozenset[int],
) -> list[list[int]]:
    """Return the greedy answer of the engine in ./engine to each prompt, end token included.

    The pipeline has the properties, batch size, step length and prefix cache of serving.
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


def _scheduler(limits: ResolvedLimits, prompts: Sequence[EvaluationPrompt]) -> Any:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = limits.max_batch_size
    scheduler.max_num_batched_tokens = limits.max_num_tokens
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    max_sequence_length = max(len(prompt.ids) + prompt.max_tokens for prompt in prompts)
    sequence_count = min(limits.max_batch_size, len(prompts))
    # One spare block each: a full pool would preempt requests.
    scheduler.num_kv_blocks = sequence_count * (max_sequence_length // BLOCK_SIZE + 2)
    return scheduler


def evaluate(
    model: Any,
    request: BuilderRequest,
    checkpoint: DecoderCheckpoint,
    limits: ResolvedLimits,
    prompts: Sequence[EvaluationPrompt],
    tokenizer: Any,
) -> AnswerComparison:
    """Compare the engine in ./engine with the transformers `model` on `prompts`."""
    eos = frozenset(checkpoint.eos_token_ids)
    expected = reference_answers(model, prompts, eos)
    actual = engine_answers(request.precision, limits, prompts, eos)
    return compare_answers(prompts, expected, actual, tokenizer)

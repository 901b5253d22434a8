# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI's continuous batching as an engine of the text path.

https://docs.openvino.ai/2026/openvino-workflow-generative.html
"""

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from openvino_genai.py_openvino_genai import GenerationHandle  # not exported above

from openvinolib.guides import check_guide, structured_output_config
from openvinolib.vocabulary import vocabulary_tokenizer
from textlib.engine.contract import StreamProgress
from textlib.engine.guide_trials import GuideTrials
from textlib.engine.guided_step import GuidedStep
from textlib.engine.partial_blocks import PartialBlocks
from textlib.engine.worker import end_process
from textlib.errors import EngineFailedError, ModelConfigurationError, RequestError, TextPathError
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.engine_metrics import KvCache
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import GenerationRequest, GuideSpec
from textlib.triton.sampling import SamplingParams

_SEED_BITS = 32
_TRIAL_SECONDS = 0.02  # maximum wait of a step while only guides are tested
# xgrammar never drops a guide: beyond this size the pipeline is reloaded between two answers.
_GUIDES_BYTES = 256 << 20
_LOG = logging.getLogger(__name__)
_FINISH = {openvino_genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class _RunningSequence:
    """A sequence in the pipeline."""

    handle: GenerationHandle
    ids: list[int]  # prompt and generated ids
    prompt_length: int
    guide: GuideSpec | None
    end_ids: frozenset[int]
    log_probs: bool


class OpenvinoEngine:
    """A GenerationEngine over a ContinuousBatchingPipeline that sees only token ids."""

    def __init__(self, folder: Path, parameters: ModelParameters) -> None:
        self._folder, self._parameters = folder, parameters
        self._kv_blocks = parameters.integer("num_kv_blocks")
        self._running: dict[int, _RunningSequence] = {}
        self._held: dict[int, GenerationRequest] = {}  # until they may start
        self._eos_token_ids = parameters.integers("eos_token_ids")
        self._tokenizer = folder.parent / "tokenizer" / "tokenizer.json"
        self._vocab_size = parameters.integer("vocab_size")
        self._trials = GuideTrials(
            ("-m", "openvinolib.guide_compiler"),
            {
                "tokenizer": str(self._tokenizer),
                "vocab_size": self._vocab_size,
                "end_ids": self._eos_token_ids,
            },
        )
        self._load()

    def _load(self) -> None:
        """Load a pipeline without streams. Raises ModelConfigurationError."""
        self._partial_blocks = (
            PartialBlocks(self._parameters.integer("block_size"), max_ends=self._kv_blocks)
            if self._parameters.boolean("enable_prefix_caching")
            else None
        )
        self._vocabulary = vocabulary_tokenizer(self._tokenizer, self._vocab_size)
        self._pipeline = _open_pipeline(self._folder, self._vocabulary, self._parameters)

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Add a request; it joins at one of the next steps."""
        if request.bad_words:
            raise RequestError(
                "bad_words: OpenVINO GenAI cannot keep words out of its answers. Leave them out, "
                "or serve the model with an engine that can."
            )
        if request.guide is not None:
            self._check_guided(request, request.guide)
        if self._may_start(stream_id, request):
            self._start(stream_id, request)
        else:
            self._held[stream_id] = request

    def _check_guided(self, request: GenerationRequest, guide: GuideSpec) -> None:
        if self._vocabulary is None or not self._eos_token_ids:
            raise RequestError(
                "guided_decoding_guide_type: answers of this model cannot be guided: "
                + (
                    "it has no end token"
                    if self._vocabulary
                    else "the text of its tokens depends on their neighbours"
                )
                + ". Send the request without a guide."
            )
        check_guide(request, guide)

    def _may_start(self, stream_id: int, request: GenerationRequest) -> bool:
        if self._trials.compiled_bytes > _GUIDES_BYTES:
            return False
        guide = request.guide
        if guide is not None and not self._trials.is_accepted(guide, request.tenant):
            return False
        prompt = request.token_ids.tolist()
        return self._partial_blocks is None or self._partial_blocks.try_claim(stream_id, prompt)

    def _start(self, stream_id: int, request: GenerationRequest) -> None:
        ids = openvino.Tensor(request.token_ids.astype(np.int64)[np.newaxis])
        sampling = request.sampling
        config = generation_config(_resumed_sampling(sampling, request.num_resumed_ids))
        end_ids = frozenset(sampling.end_ids)
        if request.guide is not None:
            end_ids |= set(self._eos_token_ids)  # after a complete guide only an end token may come
            config.stop_token_ids = set(end_ids)
            config.structured_output_config = structured_output_config(request.guide)
        try:
            handle = self._pipeline.add_request(stream_id, ids, config)
        except RuntimeError as error:  # the pipeline checks the generation config
            self._release_claim(stream_id)
            raise RequestError(f"OpenVINO rejects the request: {error}") from error
        self._running[stream_id] = _RunningSequence(
            handle,
            request.token_ids.tolist(),
            len(request.token_ids),
            request.guide,
            end_ids,
            sampling.log_probs,
        )

    def step(self) -> Sequence[StreamProgress]:
        """Advance every sequence by one step."""
        if not self._running and self._trials.compiled_bytes > _GUIDES_BYTES:
            self._reload()
        rejected = self._start_held()
        if self._held and not self._running:  # their guides are being tested
            self._trials.wait(0.0 if rejected else _TRIAL_SECONDS)
            return rejected
        guided_step = GuidedStep(self._guides_in_decode())
        try:
            self._pipeline.step()
        except Exception:  # the pipeline would raise in every later step
            self._held.clear()
            self._reload()
            raise
        progress = [
            _read_progress(stream_id, running)
            for stream_id, running in self._running.items()
            if running.handle.can_read()
        ]
        if problem := guided_step.slowness_error():
            progress = self._end_guided(progress, problem)
        for item in progress:
            self._release_claim(item.stream_id)
            if item.error or item.finish:
                self.cancel(item.stream_id)
        return rejected + progress

    def _guides_in_decode(self) -> set[GuideSpec]:
        """Return the guides of the next step; none if it may compute a prompt, which takes long."""
        running = self._running.values()
        if any(len(each.ids) == each.prompt_length for each in running):
            return set()
        return {each.guide for each in running if each.guide is not None}

    def _end_guided(
        self, progress: list[StreamProgress], problem: RequestError
    ) -> list[StreamProgress]:
        """Fail the guided streams: in each further step every other stream would wait, too."""
        guided = {key: each.guide for key, each in self._running.items() if each.guide is not None}
        if len({*guided.values()}) == 1:  # else it is unknown which one was slow
            self._trials.reject(next(iter(guided.values())), problem)
        _LOG.warning("%d guided streams are ended: %s", len(guided), problem)
        remaining = [item for item in progress if item.stream_id not in guided]
        return remaining + [StreamProgress(key, [], error=problem) for key in guided]

    def _reload(self) -> None:
        """Replace the pipeline by a new one without guides."""
        started_at = time.monotonic()
        self._trials.reset()
        self._running.clear()
        del self._pipeline, self._vocabulary  # frees their memory first
        try:
            self._load()
        except Exception as error:
            end_process(f"the pipeline cannot be reloaded: {error}")
        _LOG.warning("the pipeline was reloaded in %.1f s", time.monotonic() - started_at)

    def _start_held(self) -> list[StreamProgress]:
        """Add the held requests; return the errors of rejected ones."""
        rejected = []
        for stream_id, request in list(self._held.items()):
            try:
                if self._may_start(stream_id, request):
                    del self._held[stream_id]
                    self._start(stream_id, request)
            except TextPathError as error:
                self._held.pop(stream_id, None)
                rejected.append(StreamProgress(stream_id, [], error=error))
        return rejected

    def _release_claim(self, stream_id: int) -> None:
        if self._partial_blocks:
            self._partial_blocks.release_claim(stream_id)

    def cancel(self, stream_id: int) -> None:
        """Free the KV blocks of a sequence, finished or not."""
        held = self._held.pop(stream_id, None)
        guide = held.guide if held else None
        if guide is not None and all(each.guide != guide for each in self._held.values()):
            self._trials.withdraw(guide)
        if running := self._running.pop(stream_id, None):
            running.handle.cancel()
            self._release_claim(stream_id)
            if self._partial_blocks:  # the last id may or may not be computed
                self._partial_blocks.record_end(running.ids[:-1])
                self._partial_blocks.record_end(running.ids)

    def kv_cache(self) -> KvCache:
        """Return the used and free blocks as of the last step.

        The pipeline reports a percentage that counts blocks of its prefix cache as used until a
        step needs them; without a running sequence all blocks are free.
        """
        used = round(self._pipeline.get_metrics().cache_usage / 100 * self._kv_blocks)
        used = used if self._running else 0
        return KvCache(used, self._kv_blocks - used)


def _open_pipeline(
    folder: Path, tokens: openvino_genai.Tokenizer | None, parameters: ModelParameters
) -> openvino_genai.ContinuousBatchingPipeline:
    """Load the pipeline of an engine's folder. Raises ModelConfigurationError."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = parameters.integer("num_kv_blocks")
    scheduler.max_num_seqs = parameters.integer("max_num_seqs")
    scheduler.max_num_batched_tokens = parameters.integer("max_num_batched_tokens")
    scheduler.enable_prefix_caching = parameters.boolean("enable_prefix_caching")
    scheduler.dynamic_split_fuse = True
    properties = parameters.settings("properties")
    try:
        if tokens is not None:
            return openvino_genai.ContinuousBatchingPipeline(
                folder, tokens, scheduler, "CPU", **properties
            )
        # Without openvino_tokenizer.xml in the folder, the pipeline works only on ids.
        return openvino_genai.ContinuousBatchingPipeline(
            folder, scheduler_config=scheduler, device="CPU", properties=properties
        )
    except RuntimeError as error:
        raise ModelConfigurationError(
            f"OpenVINO cannot load {folder} with {properties}: {error}. "
            "Build the model again, or correct engine.properties."
        ) from error


def _read_progress(stream_id: int, running: _RunningSequence) -> StreamProgress:
    ids: list[int] = []
    log_probs: list[float] = []
    finish = FinishReason.NONE
    while running.handle.can_read():
        for output in running.handle.read().values():
            ids += output.generated_ids
            running.ids.extend(output.generated_ids)
            if running.log_probs:
                log_probs += output.generated_log_probs
            finish = _FINISH.get(output.finish_reason, finish)
    for position, token in enumerate(ids):
        if token in running.end_ids:
            made = position + 1
            return StreamProgress(
                stream_id, ids[:made], FinishReason.STOP, log_probs=log_probs[:made]
            )
    error = None if ids or finish else _dropped_error(running.handle)
    return StreamProgress(stream_id, ids, finish, error, log_probs)


def _dropped_error(handle: GenerationHandle) -> TextPathError | None:
    """Return the error of a sequence that the pipeline dropped, which it reports as no ids."""
    if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
        return None
    return EngineFailedError(
        "the engine dropped the request: its KV cache was full. Send it again under less "
        "load, or raise num_kv_blocks."
    )


def _resumed_sampling(sampling: SamplingParams, resumed: int) -> SamplingParams:
    """Return the sampling of an answer whose first `resumed` ids came from another server."""
    if not resumed:
        return sampling
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(sampling, name):
            raise RequestError(
                f"{name}: OpenVINO GenAI counts only ids that it generated, so it cannot continue "
                "after resume_ids. Send the request without them, for a new answer."
            )
    # The sampler must not repeat the random numbers of the first part.
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + resumed)


def generation_config(sampling: SamplingParams) -> openvino_genai.GenerationConfig:
    """Convert the sampling parameters into OpenVINO's form."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = sampling.max_tokens
    if sampling.end_ids:
        # The pipeline ends the sequence in the step that generates the end id; a later cancel
        # would cost one more step. With an eos_token_id it adds no ids from its own files.
        config.eos_token_id = sampling.end_ids[0]
        config.stop_token_ids = set(sampling.end_ids)
        config.min_new_tokens = sampling.min_tokens  # suppresses end ids until then
    else:
        config.ignore_eos = True
    config.logprobs = int(sampling.log_probs)
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    config.do_sample = not sampling.greedy
    if not sampling.greedy:
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        config.top_k = sampling.top_k
        config.min_p = sampling.min_p
        config.rng_seed = _seed(sampling.seed)
    return config


def _seed(seed: int | None) -> int:
    """Return a seed of 32 bits, which the pipeline uses; its default would repeat one sample."""
    if seed is None:
        return secrets.randbits(_SEED_BITS)
    return (seed ^ seed >> _SEED_BITS) & (1 << _SEED_BITS) - 1

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

from openvinolib.guides import check_guided, structure
from openvinolib.vocabulary import vocabulary
from textlib.engine_contract import Progress
from textlib.engine_metrics import KvCache
from textlib.engine_worker import end_process
from textlib.errors import ConfigurationError, EngineFailedError, RequestError, TextPathError
from textlib.guide_trials import GuideTrials
from textlib.parameters import ModelParameters
from textlib.partial_blocks import PartialBlocks
from textlib.request_tensors import GenerationRequest, Guide
from textlib.sampling import SamplingParams
from textlib.token_chunk import FinishReason

_SEED_BITS = 32
_TRIAL_SECONDS = 0.02  # how long a step waits at most where only guides are tried
# xgrammar never forgets a guide: beyond this the pipeline is loaded again, between two answers.
_GUIDES_BYTES = 256 << 20
_LOG = logging.getLogger(__name__)
_FINISH = {openvino_genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class _Running:
    """A sequence in the pipeline, its ids so far, and the ids that end it."""

    handle: GenerationHandle
    ids: list[int]
    end_ids: frozenset[int]
    log_probs: bool


class OpenvinoEngine:
    """textlib's Engine over a ContinuousBatchingPipeline that sees token ids only."""

    def __init__(self, folder: Path, parameters: ModelParameters) -> None:
        self._folder, self._parameters = folder, parameters
        self._kv_blocks = parameters.integer("num_kv_blocks")
        self._running: dict[int, _Running] = {}
        self._held: dict[int, GenerationRequest] = {}  # until they may begin
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
        """A pipeline without streams. Raises ConfigurationError."""
        self._partial = (
            PartialBlocks(self._parameters.integer("block_size"), most=self._kv_blocks)
            if self._parameters.boolean("enable_prefix_caching")
            else None
        )
        self._vocabulary = vocabulary(self._tokenizer, self._vocab_size)
        self._pipeline = _pipeline(self._folder, self._vocabulary, self._parameters)

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Add a request; it joins at one of the next steps."""
        if request.bad_words:
            raise RequestError(
                "bad_words: OpenVINO GenAI cannot keep words out of its answers. Leave them out, "
                "or serve the model with an engine that can."
            )
        if request.guide is not None:
            self._check_guided(request, request.guide)
        if self._may_begin(stream_id, request):
            self._begin(stream_id, request)
        else:
            self._held[stream_id] = request

    def _check_guided(self, request: GenerationRequest, guide: Guide) -> None:
        if self._vocabulary is None or not self._eos_token_ids:
            raise RequestError(
                "guided_decoding_guide_type: answers of this model cannot be guided: "
                + ("it has no end token" if self._vocabulary else "its tokens have no text alone")
                + ". Send the request without a guide."
            )
        check_guided(request, guide)

    def _may_begin(self, stream_id: int, request: GenerationRequest) -> bool:
        if self._trials.compiled_bytes > _GUIDES_BYTES:
            return False
        if request.guide is not None and not self._trials.passed(request.guide):
            return False
        prompt = request.token_ids.tolist()
        return self._partial is None or self._partial.may_begin(stream_id, prompt)

    def _begin(self, stream_id: int, request: GenerationRequest) -> None:
        ids = openvino.Tensor(request.token_ids.astype(np.int64)[np.newaxis])
        sampling = request.sampling
        config = generation_config(_behind(sampling, request.resumed))
        ends = frozenset(sampling.end_ids)
        if request.guide is not None:
            ends |= set(self._eos_token_ids)  # where a guide is through nothing else may come
            config.stop_token_ids = set(ends)
            config.structured_output_config = structure(request.guide)
        try:
            handle = self._pipeline.add_request(stream_id, ids, config)
        except RuntimeError as error:  # its checks of the generation config
            self._begun(stream_id)
            raise RequestError(f"OpenVINO refuses the request: {error}") from error
        self._running[stream_id] = _Running(
            handle, request.token_ids.tolist(), ends, sampling.log_probs
        )

    def step(self) -> Sequence[Progress]:
        """Advance every sequence by one step."""
        if not self._running and self._trials.compiled_bytes > _GUIDES_BYTES:
            self._renew()
        refused = self._begin_held()
        if self._held and not self._running:  # for guides that are tried
            self._trials.wait(0.0 if refused else _TRIAL_SECONDS)
            return refused
        try:
            self._pipeline.step()
        except Exception:  # it would throw at each step from now on
            self._held.clear()
            self._renew()
            raise
        progress = [
            _read(stream_id, running)
            for stream_id, running in self._running.items()
            if running.handle.can_read()
        ]
        for item in progress:
            self._begun(item.stream_id)
            if item.error or item.finish:
                self.cancel(item.stream_id)
        return refused + progress

    def _renew(self) -> None:
        """Another pipeline, which knows nothing of guides, in place of this one."""
        began = time.monotonic()
        self._trials.begin_anew()
        self._running.clear()
        del self._pipeline, self._vocabulary  # their memory first
        try:
            self._load()
        except Exception as error:
            end_process(f"the pipeline cannot be loaded again: {error}")
        _LOG.warning("the pipeline was loaded again in %.1f s", time.monotonic() - began)

    def _begin_held(self) -> list[Progress]:
        """Add the held requests; returns the errors of those that OpenVINO refuses."""
        refused = []
        for stream_id, request in list(self._held.items()):
            try:
                if self._may_begin(stream_id, request):
                    del self._held[stream_id]
                    self._begin(stream_id, request)
            except TextPathError as error:
                self._held.pop(stream_id, None)
                refused.append(Progress(stream_id, [], error=error))
        return refused

    def _begun(self, stream_id: int) -> None:
        if self._partial:
            self._partial.begun(stream_id)

    def cancel(self, stream_id: int) -> None:
        """Free the KV blocks of a sequence, finished or not."""
        self._held.pop(stream_id, None)
        if running := self._running.pop(stream_id, None):
            running.handle.cancel()
            self._begun(stream_id)
            if self._partial:  # the last id was computed or not
                self._partial.ended(running.ids[:-1])
                self._partial.ended(running.ids)

    def kv_cache(self) -> KvCache:
        """Used and free blocks, as of the last step.

        The pipeline gives a percentage, with blocks of its prefix cache as used until a step needs
        them: without a running sequence they are free.
        """
        used = round(self._pipeline.get_metrics().cache_usage / 100 * self._kv_blocks)
        used = used if self._running else 0
        return KvCache(used, self._kv_blocks - used)


def _pipeline(
    folder: Path, tokens: openvino_genai.Tokenizer | None, parameters: ModelParameters
) -> openvino_genai.ContinuousBatchingPipeline:
    """The pipeline of an engine's folder. Raises ConfigurationError."""
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
        # A folder without openvino_tokenizer.xml: the pipeline then works on ids alone.
        return openvino_genai.ContinuousBatchingPipeline(
            folder, scheduler_config=scheduler, device="CPU", properties=properties
        )
    except RuntimeError as error:
        raise ConfigurationError(
            f"OpenVINO cannot load {folder} with {properties}: {error}. "
            "Build the model again, or correct engine.properties."
        ) from error


def _read(stream_id: int, running: _Running) -> Progress:
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
            return Progress(stream_id, ids[:made], FinishReason.STOP, log_probs=log_probs[:made])
    error = None if ids or finish else _dropped(running.handle)
    return Progress(stream_id, ids, finish, error, log_probs)


def _dropped(handle: GenerationHandle) -> TextPathError | None:
    """The pipeline reports a sequence that it gave up by an empty read."""
    if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
        return None
    return EngineFailedError(
        "the engine dropped the request: its KV cache was full. Send it again under less "
        "load, or raise num_kv_blocks."
    )


def _behind(sampling: SamplingParams, resumed: int) -> SamplingParams:
    """The sampling of an answer whose first `resumed` ids came from another server."""
    if not resumed:
        return sampling
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(sampling, name):
            raise RequestError(
                f"{name}: OpenVINO GenAI counts only what it made itself, so it cannot continue "
                "after resume_ids. Send the request without them, for a new answer."
            )
    # The same numbers must not be drawn a second time.
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + resumed)


def generation_config(sampling: SamplingParams) -> openvino_genai.GenerationConfig:
    """OpenVINO's form of the sampling parameters."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = sampling.max_tokens
    if sampling.end_ids:
        # The pipeline ends the sequence within the step that makes its end: one that is cancelled
        # afterwards takes part in one more. To an eos_token_id it adds no ids of its own files.
        config.eos_token_id = sampling.end_ids[0]
        config.stop_token_ids = set(sampling.end_ids)
        config.min_new_tokens = sampling.min_tokens  # until then they are kept improbable
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
        config.rng_seed = _seed(sampling.seed)
    return config


def _seed(seed: int | None) -> int:
    """32 bits, all that the pipeline's generator uses; its default would repeat one sample."""
    if seed is None:
        return secrets.randbits(_SEED_BITS)
    return (seed ^ seed >> _SEED_BITS) & (1 << _SEED_BITS) - 1

# SPDX-License-Identifier: Apache-2.0
"""Repeat user requests, twice on stable and once on the candidate, and log the differences.

Everything is bounded: request size, queue length and waiting time, concurrency. Requests beyond the
limits are dropped and counted: users have priority on the servers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.errors import ServerBusyError, TritonctlError
from tritonctl.frontend.routing.replicas import slots_of
from tritonctl.rollout.compare import answer_text
from tritonctl.rollout.measures import TimedAnswer, answer_times, measure_answers
from tritonctl.rollout.shadow.answers import VersionClient
from tritonctl.rollout.shadow.capacity_probe import CapacityProbe
from tritonctl.rollout.shadow.comparison_log import ComparisonLog, ComparisonRecord, ShadowCounts
from tritonctl.rollout.shadow.config import ShadowConfig
from tritonctl.rollout.shadow.listening import RequestCopy
from tritonctl.rollout.shadow.questions import (
    ServedModelFacts,
    ShadowQuestion,
    question_of,
    shadow_request,
)
from tritonctl.rollout.shadow.recording import prompt_record
from tritonctl.rollout.shadow.rest_requests import NotUnderstoodError

_LOG = logging.getLogger("tritonctl.shadow")
_FACTS_SECONDS = 30.0
_PROBE_SECONDS = 0.2
_SEEDS = 2**32
FULL_QUEUE, NO_CAPACITY = "the queue was full", "no server had capacity in time"
UNKNOWN_MODEL, NOT_ANSWERED, NOT_WRITTEN, INTERNAL_ERROR = (
    "not a public model",
    "a server did not answer",
    "the disk is full",
    "internal error",
)


@dataclass(frozen=True)
class _QueuedQuestion:
    question: ShadowQuestion
    queued_at: float


class Shadower:
    """The shadower of one rollout; `clock` returns seconds.

    random_source: draws sampling seeds and the order of requests.
    """

    def __init__(
        self,
        config: ShadowConfig,
        *,
        stable: VersionClient,
        candidate: VersionClient,
        probes: tuple[CapacityProbe, CapacityProbe],
        clock: Callable[[], float] = time.monotonic,
        random_source: random.Random | None = None,
    ) -> None:
        self._config, self._clock = config, clock
        self._stable, self._candidate = stable, candidate
        self._probes = probes
        self._random = random_source or random.Random()  # noqa: S311 - no secret
        self._queue: deque[_QueuedQuestion] = deque()
        self._has_questions = asyncio.Event()
        self._facts_cache: dict[str, tuple[float, ServedModelFacts, int | None]] = {}
        self._log = ComparisonLog(config.folder)
        self.counts = ShadowCounts()

    def enqueue(self, copy: RequestCopy) -> None:
        """Queue a copy unless the queue is full. Does not wait."""
        if len(self._queue) >= self._config.waiting:
            self.counts.copies += 1
            self.counts.count_skipped(FULL_QUEUE)
            return
        try:
            question = question_of(copy, self._config.frontend)
        except NotUnderstoodError as error:
            self.counts.copies += 1
            self.counts.count_skipped(str(error))
            return
        except Exception as error:
            self.counts.copies += 1
            self._record_internal_error(error)
            return
        if question is None:
            return
        self.counts.copies += 1
        if question.model not in self._config.models:
            self.counts.count_skipped(UNKNOWN_MODEL)
            return
        self._queue.append(_QueuedQuestion(question, self._clock()))
        self._has_questions.set()

    async def run(self) -> None:
        """Process the queue until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._config.in_flight):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._has_questions.clear()
                await self._has_questions.wait()
            queued = self._queue.popleft()
            try:
                await self._compare(queued)
            except NotUnderstoodError as error:
                self.counts.count_skipped(str(error))
            except TritonctlError as error:
                self.counts.count_skipped(NOT_ANSWERED)
                _LOG.info("%s", type(error).__name__)
            except OSError as error:
                self.counts.count_skipped(NOT_WRITTEN)
                _LOG.warning("%s cannot be written: %s", self._config.folder, error.strerror)
            except Exception as error:
                self._record_internal_error(error)

    def _record_internal_error(self, error: Exception) -> None:
        """Log where a question failed; its message may quote a user's text, so omit it."""
        self.counts.count_skipped(INTERNAL_ERROR)
        stack = "".join(traceback.format_tb(error.__traceback__))
        _LOG.error("a question failed: %s\n%s", type(error).__name__, stack)

    async def _compare(self, queued: _QueuedQuestion) -> None:
        model = queued.question.model
        facts, slots = await self._facts(model)
        seed = self._random.randrange(_SEEDS)
        request = shadow_request(queued.question.request(facts), facts, seed)
        while reason := await self._missing_capacity(slots):
            if self._clock() - queued.queued_at > self._config.patience_seconds:
                self.counts.count_skipped(f"{NO_CAPACITY}: {reason}")
                return
            await asyncio.sleep(_PROBE_SECONDS)
        # Random order, so that an effect on the first of three requests hits each equally often.
        order = ["first", "second", "candidate"]
        self._random.shuffle(order)
        answers: dict[str, TimedAnswer] = {}
        for name in order:
            answers[name] = await self._ask(name == "candidate", request, facts)
        first, second, candidate = answers["first"], answers["second"], answers["candidate"]
        record = ComparisonRecord(
            time.time(),
            model,
            facts.task.task.name,
            measure_answers(
                first.answer,
                second.answer,
                candidate.answer,
                answer_times(first, second, candidate),
            ),
        )
        # The record last: a reader then finds the prompt that belongs to it.
        if self._config.keep_prompts:
            self._log.add_prompt(_prompt_line(record, request, facts, answers))
        self.counts.compared += 1
        self._log.add(record)

    async def _missing_capacity(self, slots: int | None) -> str:
        """Why a server has no capacity, or ""."""
        for name, probe in zip(("stable", "candidate"), self._probes, strict=True):
            if reason := await probe.missing_capacity(slots):
                return f"{name}: {reason}"
        return ""

    async def _ask(self, candidate: bool, request: Any, facts: ServedModelFacts) -> TimedAnswer:
        version = self._candidate if candidate else self._stable
        try:
            return await version.answer(request, facts)
        except TritonctlError as error:
            self._probes[candidate].record_refusal()
            if isinstance(error, ServerBusyError):
                raise NotUnderstoodError("a server was full") from error
            raise

    async def _facts(self, model: str) -> tuple[ServedModelFacts, int | None]:
        since, facts, slots = self._facts_cache.get(model, (float("-inf"), None, None))
        now = self._clock()
        if facts is None or now - since > _FACTS_SECONDS:
            facts = await self._stable.model_facts(model)
            slots = slots_of((await self._stable.configurations(model)).values())
            self._facts_cache[model] = now, facts, slots
        return facts, slots


def _prompt_line(
    record: ComparisonRecord,
    request: Any,
    facts: ServedModelFacts,
    answers_by_name: Mapping[str, TimedAnswer],
) -> dict[str, Any]:
    answers = {name: answer_text(timed.answer) for name, timed in answers_by_name.items()}
    return {"at": round(record.at, 3), **prompt_record(request, facts), "answers": answers}

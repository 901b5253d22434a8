# SPDX-License-Identifier: Apache-2.0
"""Asks what users asked: of stable twice, of the candidate once, and writes down what differs.

Bounded at every place: how long a request may be, how many wait and how long, how many are asked at
once. What does not fit is dropped and counted: the servers are the users'.
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
from tritonctl.rollout.compare import told
from tritonctl.rollout.measures import Timed, measured, times_of
from tritonctl.rollout.shadow.answers import Version
from tritonctl.rollout.shadow.config import ShadowConfig
from tritonctl.rollout.shadow.found import Counts, Found, Lines
from tritonctl.rollout.shadow.listening import Copy
from tritonctl.rollout.shadow.questions import Facts, Question, prepared, question_of
from tritonctl.rollout.shadow.recording import recorded
from tritonctl.rollout.shadow.rest import NotUnderstoodError
from tritonctl.rollout.shadow.room import Room

_LOG = logging.getLogger("tritonctl.shadow")
_FACTS_SECONDS = 30.0
_LOOK_SECONDS = 0.2
_SEEDS = 2**32
FULL_QUEUE, TOO_OLD = "more wait than may", "no server had room in time"
UNKNOWN, NOT_ANSWERED, NOT_WRITTEN, MISTAKE = (
    "no public model",
    "a server did not answer",
    "the disk is full",
    "a mistake of ours",
)


@dataclass(frozen=True)
class _Waiting:
    question: Question
    since: float


class Shadower:
    """One rollout's. clock: seconds, of waiting; draw: of seeds and orders."""

    def __init__(
        self,
        config: ShadowConfig,
        *,
        stable: Version,
        candidate: Version,
        rooms: tuple[Room, Room],
        clock: Callable[[], float] = time.monotonic,
        draw: random.Random | None = None,
    ) -> None:
        self._config, self._clock = config, clock
        self._stable, self._candidate = stable, candidate
        self._rooms = rooms
        self._draw = draw or random.Random()  # noqa: S311 - no secret
        self._waiting: deque[_Waiting] = deque()
        self._some = asyncio.Event()
        self._known: dict[str, tuple[float, Facts, int | None]] = {}
        self._lines = Lines(config.folder)
        self.counts = Counts()

    def take(self, copy: Copy) -> None:
        """Remember a copy, if there is a place for it. Does not wait."""
        if len(self._waiting) >= self._config.waiting:
            self.counts.copies += 1
            self.counts.leave(FULL_QUEUE)
            return
        try:
            question = question_of(copy, self._config.frontend)
        except NotUnderstoodError as error:
            self.counts.copies += 1
            self.counts.leave(str(error))
            return
        except Exception as error:
            self.counts.copies += 1
            self._mistaken(error)
            return
        if question is None:
            return
        self.counts.copies += 1
        if question.model not in self._config.models:
            self.counts.leave(UNKNOWN)
            return
        self._waiting.append(_Waiting(question, self._clock()))
        self._some.set()

    async def run(self) -> None:
        """Ask, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._config.in_flight):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._some.clear()
                await self._some.wait()
            waiting = self._waiting.popleft()
            try:
                await self._one(waiting)
            except NotUnderstoodError as error:
                self.counts.leave(str(error))
            except TritonctlError as error:
                self.counts.leave(NOT_ANSWERED)
                _LOG.info("%s", type(error).__name__)
            except OSError as error:
                self.counts.leave(NOT_WRITTEN)
                _LOG.warning("%s cannot be written: %s", self._config.folder, error.strerror)
            except Exception as error:
                self._mistaken(error)

    def _mistaken(self, error: Exception) -> None:
        """Of one question. Its error may quote what a user has written: the log says where only."""
        self.counts.leave(MISTAKE)
        places = "".join(traceback.format_tb(error.__traceback__))
        _LOG.error("a question failed: %s\n%s", type(error).__name__, places)

    async def _one(self, waiting: _Waiting) -> None:
        model = waiting.question.model
        facts, slots = await self._facts(model)
        seed = self._draw.randrange(_SEEDS)
        request = prepared(waiting.question.request(facts), facts, seed)
        while reason := await self._lacking(slots):
            if self._clock() - waiting.since > self._config.patience_seconds:
                self.counts.leave(f"{TOO_OLD}: {reason}")
                return
            await asyncio.sleep(_LOOK_SECONDS)
        # In any order, so that whatever the first of three meets, each is as likely to be it.
        order = ["first", "second", "candidate"]
        self._draw.shuffle(order)
        given: dict[str, Timed] = {}
        for name in order:
            given[name] = await self._ask(name == "candidate", request, facts)
        first, second, candidate = given["first"], given["second"], given["candidate"]
        found = Found(
            time.time(),
            model,
            facts.served.task.name,
            measured(
                first.answer, second.answer, candidate.answer, times_of(first, second, candidate)
            ),
        )
        # The figures last: whoever reads them finds what belongs to them.
        if self._config.keep_prompts:
            self._lines.keep(_kept(found, request, facts, given))
        self.counts.compared += 1
        self._lines.add(found)

    async def _lacking(self, slots: int | None) -> str:
        """Why one of the servers has no room."""
        for name, room in zip(("stable", "candidate"), self._rooms, strict=True):
            if reason := await room.lacking(slots):
                return f"{name}: {reason}"
        return ""

    async def _ask(self, candidate: bool, request: Any, facts: Facts) -> Timed:
        version = self._candidate if candidate else self._stable
        try:
            return await version.answer(request, facts)
        except TritonctlError as error:
            self._rooms[candidate].refused()
            if isinstance(error, ServerBusyError):
                raise NotUnderstoodError("a server was full") from error
            raise

    async def _facts(self, model: str) -> tuple[Facts, int | None]:
        since, facts, slots = self._known.get(model, (float("-inf"), None, None))
        now = self._clock()
        if facts is None or now - since > _FACTS_SECONDS:
            facts = await self._stable.facts(model)
            slots = slots_of((await self._stable.configurations(model)).values())
            self._known[model] = now, facts, slots
        return facts, slots


def _kept(found: Found, request: Any, facts: Facts, given: Mapping[str, Timed]) -> dict[str, Any]:
    answers = {name: told(timed.answer) for name, timed in given.items()}
    return {"at": round(found.at, 3), **recorded(request, facts), "answers": answers}

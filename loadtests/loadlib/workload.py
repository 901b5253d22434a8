# SPDX-License-Identifier: Apache-2.0
"""The content of the requests: class, prompt, lengths, turns.

Everything is drawn from the plan's seed in the order of the schedule, before it is needed: each
worker draws the whole sequence and keeps its own part, so all of them see the same requests.
Each of these has its own random stream: more prompts do not change the lengths.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice, repeat
from random import Random

from loadlib.arrivals import Closed, Trace, schedule
from loadlib.clock import US
from loadlib.distributions import Distribution
from loadlib.plan import Cancel, Plan, RequestClass
from loadlib.prompts import Prompt, PromptOrder, read_prompts, resized
from loadlib.trace import TraceEntry

_AHEAD = 1000


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session, or the only one. `cancel` None: it runs to its end.

    `think_us`: the pause after the answer before it, 0 for the first.
    """

    prompt: Prompt
    max_tokens: int | None
    cancel: Cancel | None
    think_us: int


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """An arrival. `at_us`: when it is due, since the start (None in a closed loop)."""

    index: int
    at_us: int | None
    request_class: RequestClass
    turns: tuple[Turn, ...]

    @property
    def session(self) -> int | None:
        """The number of its session, if it is a conversation."""
        return self.index if self.request_class.turns is not None else None


class Upcoming:
    """The schedule of one worker. All times (`due`, in microseconds) are known from the start.

    Contents are drawn in order, a little ahead of their use, as half a million take half a minute.
    So read it forwards, by `[position]` or by iterating, and only once.
    """

    def __init__(
        self, due: array[int] | None = None, drawn: Iterator[PlannedRequest] | None = None
    ):
        self.due = array("q") if due is None else due
        self._drawn = drawn or iter(())
        self._ahead: deque[PlannedRequest] = deque()
        self._position = 0

    def __len__(self) -> int:
        return len(self.due)

    def __iter__(self) -> Iterator[PlannedRequest]:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, position: int) -> PlannedRequest:
        if not self._position <= position < len(self.due):
            raise IndexError(position)
        for _ in range(position + 1 - self._position - len(self._ahead)):
            self._ahead.append(next(self._drawn))
        while self._position < position:
            self._ahead.popleft()
            self._position += 1
        return self._ahead[0]

    def draw_ahead(self, most: int) -> None:
        """Draw so many of those to come, as long as not enough of them wait."""
        for request in islice(self._drawn, min(most, _AHEAD - len(self._ahead))):
            self._ahead.append(request)


class Workload:
    """Draws the requests of a plan. Refusal when a file of prompts is missing, empty or wrong."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._mix = _Mix(plan)
        self._contents = {
            one.name: _Contents(one, plan, f"classes[{number}]")
            for number, one in enumerate(plan.classes)
        }

    @property
    def tensors(self) -> list[str]:
        """The names of all tensors in its prompts."""
        return sorted({name for contents in self._contents.values() for name in contents.tensors})

    def planned(self, worker: int = 0, workers: int = 1) -> Upcoming:
        """The whole schedule of one worker (open loop). Draws, so call it once."""
        plan, arrivals = self.plan, self.plan.arrivals
        if isinstance(arrivals, Closed):
            return Upcoming()
        due = schedule(arrivals, plan.duration_seconds, plan.count, plan.seed)
        entries = arrivals.entries if isinstance(arrivals, Trace) else repeat(None)
        drawn = (
            self._request(index, at_us, entry)
            for index, (at_us, entry) in enumerate(zip(due, entries, strict=False))
        )
        return Upcoming(due[worker::workers], islice(drawn, worker, None, workers))

    def endless(self, worker: int = 0, workers: int = 1) -> Iterator[PlannedRequest]:
        """The requests of one worker of a closed loop; ends only where the plan has a count."""
        for index in numbers():
            if self.plan.count is not None and index >= self.plan.count:
                return
            request = self._request(index, None, None)
            if index % workers == worker:
                yield request

    def _request(self, index: int, at_us: int | None, entry: TraceEntry | None) -> PlannedRequest:
        request_class = self._mix.draw(entry)
        turns = self._contents[request_class.name].turns(entry)
        return PlannedRequest(index, at_us, request_class, turns)


class _Mix:
    """Draws classes by weight."""

    def __init__(self, plan: Plan) -> None:
        self._by_name = {one.name: one for one in plan.classes}
        self._classes = plan.classes
        self._weights = [one.weight for one in plan.classes]
        self._random = Random(f"{plan.seed}:classes")

    def draw(self, entry: TraceEntry | None) -> RequestClass:
        if entry is not None and entry.class_name is not None:
            return self._by_name[entry.class_name]
        if len(self._classes) == 1:
            return self._classes[0]
        return self._random.choices(self._classes, self._weights)[0]


class _Contents:
    """Draws the contents of the requests of one class."""

    def __init__(self, one: RequestClass, plan: Plan, where: str) -> None:
        self._class = one
        prompts = read_prompts(one.prompts, f"{where}.prompts", plan.kind) if one.prompts else []
        self.tensors = {name for prompt in prompts for name in prompt.inputs or ()}
        self._prompts = PromptOrder(prompts, one.order, self._stream(plan, "prompts"))
        self._lengths = self._stream(plan, "max_tokens")
        self._inputs = self._stream(plan, "input_tokens")
        self._turns = self._stream(plan, "turns")
        self._cuts = self._stream(plan, "cancel")

    def _stream(self, plan: Plan, what: str) -> Random:
        return Random(f"{plan.seed}:{self._class.name}:{what}")

    def turns(self, entry: TraceEntry | None) -> tuple[Turn, ...]:
        """All turns of the next arrival."""
        turns = self._class.turns
        length = turns.draw_whole(self._turns) if turns else 1
        return tuple(self._turn(number, entry) for number in range(length))

    def _turn(self, number: int, entry: TraceEntry | None) -> Turn:
        think = self._class.think_seconds if number else None
        return Turn(
            prompt=self._prompt(entry if not number else None),
            max_tokens=self._max_tokens(entry),
            cancel=self._cancel(),
            think_us=round(think.draw(self._turns) * US) if think else 0,
        )

    def _prompt(self, entry: TraceEntry | None) -> Prompt:
        if entry is not None and entry.text_input is not None:
            prompt = Prompt(text=entry.text_input)
        else:
            prompt = self._prompts.next()
        words: Distribution | None = self._class.input_tokens
        return resized(prompt, words.draw_whole(self._inputs)) if words else prompt

    def _max_tokens(self, entry: TraceEntry | None) -> int | None:
        lengths = self._class.max_tokens
        drawn = lengths.draw_whole(self._lengths) if lengths else None
        return entry.max_tokens if entry is not None and entry.max_tokens else drawn

    def _cancel(self) -> Cancel | None:
        cancel = self._class.cancel
        return cancel if cancel and self._cuts.random() < cancel.share else None

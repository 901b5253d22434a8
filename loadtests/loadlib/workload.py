# SPDX-License-Identifier: Apache-2.0
"""The content of the requests: class, prompt, lengths, turns.

The plan's seed determines everything, in schedule order and ahead of use. Each worker draws the
whole sequence and keeps its own part, so all workers see the same requests. Each property has its
own random stream: more prompts do not change the lengths.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice, repeat
from random import Random

from loadlib.arrivals import ClosedLoop, TraceReplay, draw_schedule
from loadlib.clock import US
from loadlib.distributions import PlanDistribution
from loadlib.plan_types import (
    CancelRule,
    GeneratorPlan,
    PlanRequestClass,
    TraceArrival,
    UserHeaders,
)
from loadlib.prompts import LoadPrompt, PromptOrder, read_prompts, resize_prompt

_MAX_AHEAD = 1000


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session, or the only one."""

    prompt: LoadPrompt
    max_tokens: int | None
    cancel: CancelRule | None  # None: run to the end
    think_us: int  # pause after the previous response, 0 for the first turn


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """An arrival with all its turns."""

    index: int
    at_us: int | None  # due, since the start; None in a closed loop
    request_class: PlanRequestClass
    turns: tuple[Turn, ...]

    @property
    def session(self) -> int | None:
        """The session number of a conversation; None otherwise."""
        return self.index if self.request_class.turns is not None else None


class UpcomingRequests:
    """The schedule of one worker. All times (`due`, in microseconds) exist from the start.

    Contents are drawn in order, slightly ahead of use, because half a million take half a minute.
    So read forwards, by `[position]` or by iterating, and only once.
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

    def draw_ahead(self, count: int) -> None:
        """Draw up to `count` further requests while the buffer has room."""
        for request in islice(self._drawn, min(count, _MAX_AHEAD - len(self._ahead))):
            self._ahead.append(request)


def user_of(users: UserHeaders, seed: int, index: int) -> str:
    """Return the user of a request, the same for all turns of a conversation."""
    return f"user-{Random(f'{seed}:user:{index}').randrange(users.count)}"


class Workload:
    """Draws the requests of a plan.

    Raises RunRefusedError when a prompt file is missing, empty or invalid.
    """

    def __init__(self, plan: GeneratorPlan) -> None:
        self.plan = plan
        self._mix = _ClassMix(plan)
        self._contents = {
            request_class.name: _ClassContents(request_class, plan, f"classes[{number}]")
            for number, request_class in enumerate(plan.classes)
        }

    @property
    def tensors(self) -> list[str]:
        """The names of all tensors in the prompts."""
        return sorted({name for contents in self._contents.values() for name in contents.tensors})

    def planned_requests(self, worker: int = 0, workers: int = 1) -> UpcomingRequests:
        """Draw the schedule of one worker (open loop). Call it once."""
        plan, arrivals = self.plan, self.plan.arrivals
        if isinstance(arrivals, ClosedLoop):
            return UpcomingRequests()
        due = draw_schedule(arrivals, plan.duration_seconds, plan.count, plan.seed)
        entries = arrivals.entries if isinstance(arrivals, TraceReplay) else repeat(None)
        drawn = (
            self._request(index, at_us, entry)
            for index, (at_us, entry) in enumerate(zip(due, entries, strict=False))
        )
        return UpcomingRequests(due[worker::workers], islice(drawn, worker, None, workers))

    def endless_requests(self, worker: int = 0, workers: int = 1) -> Iterator[PlannedRequest]:
        """Yield the requests of one worker in a closed loop; endless without a plan count."""
        for index in numbers():
            if self.plan.count is not None and index >= self.plan.count:
                return
            request = self._request(index, None, None)
            if index % workers == worker:
                yield request

    def _request(self, index: int, at_us: int | None, entry: TraceArrival | None) -> PlannedRequest:
        request_class = self._mix.draw(entry)
        turns = self._contents[request_class.name].turns(entry)
        return PlannedRequest(index, at_us, request_class, turns)


class _ClassMix:
    """Draws classes by weight."""

    def __init__(self, plan: GeneratorPlan) -> None:
        self._by_name = {request_class.name: request_class for request_class in plan.classes}
        self._classes = plan.classes
        self._weights = [request_class.weight for request_class in plan.classes]
        self._random = Random(f"{plan.seed}:classes")

    def draw(self, entry: TraceArrival | None) -> PlanRequestClass:
        if entry is not None and entry.class_ is not None:
            return self._by_name[entry.class_]
        if len(self._classes) == 1:
            return self._classes[0]
        return self._random.choices(self._classes, self._weights)[0]


class _ClassContents:
    """Draws the contents of one class's requests."""

    def __init__(self, request_class: PlanRequestClass, plan: GeneratorPlan, location: str) -> None:
        self._class = request_class
        prompts = (
            read_prompts(request_class.prompts, f"{location}.prompts", plan.kind)
            if request_class.prompts
            else []
        )
        self.tensors = {name for prompt in prompts for name in prompt.inputs or ()}
        self._prompts = PromptOrder(
            prompts, request_class.order, self._random_stream(plan, "prompts")
        )
        self._lengths = self._random_stream(plan, "max_tokens")
        self._inputs = self._random_stream(plan, "input_tokens")
        self._turns = self._random_stream(plan, "turns")
        self._cuts = self._random_stream(plan, "cancel")

    def _random_stream(self, plan: GeneratorPlan, purpose: str) -> Random:
        return Random(f"{plan.seed}:{self._class.name}:{purpose}")

    def turns(self, entry: TraceArrival | None) -> tuple[Turn, ...]:
        """Draw all turns of the next arrival."""
        turns = self._class.turns
        length = turns.draw_whole(self._turns) if turns else 1
        return tuple(self._turn(number, entry) for number in range(length))

    def _turn(self, number: int, entry: TraceArrival | None) -> Turn:
        think = self._class.think_seconds if number else None
        return Turn(
            prompt=self._prompt(entry if not number else None),
            max_tokens=self._max_tokens(entry),
            cancel=self._cancel(),
            think_us=round(think.draw(self._turns) * US) if think else 0,
        )

    def _prompt(self, entry: TraceArrival | None) -> LoadPrompt:
        if entry is not None and entry.text_input is not None:
            prompt = LoadPrompt(text=entry.text_input)
        else:
            prompt = self._prompts.next_prompt()
        words: PlanDistribution | None = self._class.input_tokens
        return resize_prompt(prompt, words.draw_whole(self._inputs)) if words else prompt

    def _max_tokens(self, entry: TraceArrival | None) -> int | None:
        lengths = self._class.max_tokens
        drawn = lengths.draw_whole(self._lengths) if lengths else None
        return entry.max_tokens if entry is not None and entry.max_tokens else drawn

    def _cancel(self) -> CancelRule | None:
        cancel = self._class.cancel
        return cancel if cancel and self._cuts.random() < cancel.share else None

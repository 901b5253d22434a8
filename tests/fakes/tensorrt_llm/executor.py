# SPDX-License-Identifier: Apache-2.0
"""Requests and results, as they are handed to users."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .sampling_params import SamplingParams


@dataclass(slots=True)
class LoRARequest:
    """Which adapter; the path is looked at at once."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"

    def __post_init__(self) -> None:
        """The library's own checks."""
        if not self.lora_name:
            raise ValueError("lora_name must not be empty")
        if not Path(self.lora_path).exists():
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")
        if self.lora_ckpt_source not in {"hf", "nemo"}:
            raise ValueError(
                f"lora_ckpt_source must be 'hf' or 'nemo', not {self.lora_ckpt_source}"
            )


class RequestError(RuntimeError):
    """What the executor says about one request."""


@dataclass(slots=True)
class Logprob:
    """Log probability and rank of an id."""

    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """Everything that one sequence has made; `token_ids` and `logprobs` grow."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class Response:
    """What the executor's thread sends: ids with their log probabilities, or an error."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stopped_by: int | None = None
    error: str | None = None


class EventQueue:
    """An asyncio queue that another thread fills; bound to the loop it was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: Any) -> None:
        """From any thread; of a loop that has ended nobody waits."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def get(self, timeout: float | None = None) -> Any:
        """In the loop alone."""
        assert asyncio.get_running_loop() is self._loop, "the queue is of another event loop"
        return await asyncio.wait_for(self._queue.get(), timeout)


def has_event_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class RequestOutput:
    """A request and what has come of it. Made by LLM.generate_async alone."""

    def __init__(self) -> None:
        raise RuntimeError("RequestOutput is designed to be instantiated by GenerationExecutor.")

    @classmethod
    def _of(
        cls,
        request_id: int,
        prompt: list[int],
        sampling_params: SamplingParams,
        abort: Callable[[int], None],
    ) -> RequestOutput:
        made = cls.__new__(cls)
        made.request_id = request_id
        made.prompt_token_ids = prompt
        made.sampling_params = sampling_params
        made.outputs = [CompletionOutput(0)]
        made._abort = abort
        made._aborted = made._done = False
        made.aqueue = EventQueue() if has_event_loop() else None
        made.queue = made.aqueue or queue.Queue()
        return made

    request_id: int
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    outputs: list[CompletionOutput]
    aqueue: EventQueue | None
    queue: Any
    _abort: Callable[[int], None]
    _aborted: bool
    _done: bool

    @property
    def finished(self) -> bool:
        """Whether the last response has been read."""
        return self._done

    def abort(self) -> None:
        """End the request; a last response with `cancelled` still comes."""
        self._abort(self.request_id)
        self._aborted = True

    def aborted(self) -> bool:
        """Whether it was."""
        return self._aborted

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._done:
            raise StopAsyncIteration
        assert self.aqueue is not None, "The asyncio event loop was not present during init"
        self._handle(await self.aqueue.get())
        return self

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait for the end, without an event loop."""
        while not self._done:
            self._handle(self.queue.get(timeout=timeout))
        return self

    def _handle(self, response: Response) -> None:
        output = self.outputs[0]
        if response.error is not None:
            self._done = True
            raise RequestError(response.error)
        output.token_ids.extend(response.token_ids)
        output.logprobs = [*output.logprobs, *response.logprobs]
        self._done = response.finish_reason is not None
        output.finish_reason = response.finish_reason
        output.stop_reason = response.stopped_by
        if response.stopped_by is not None and not self.sampling_params.include_stop_str_in_output:
            output.token_ids = output.token_ids[:-1]

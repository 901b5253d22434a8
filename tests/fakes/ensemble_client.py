# SPDX-License-Identifier: Apache-2.0
"""A client whose ensemble answers by a script: what the frontend's tests put in Triton's place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tritonctl.errors import RequestRejectedError, TritonctlError
from tritonctl.protocol.generation import (
    ChatPrompt,
    Chunk,
    Prompt,
    SamplingParameters,
    TokenPrompt,
)
from tritonctl.protocol.tasks import TASKS, ServedTask

Step = Chunk | float | TritonctlError
WORDS = ("seven ", "thousand ", "三", "百")


@dataclass(frozen=True)
class Asked:
    """One stream that was asked for."""

    model: str
    prompt: Prompt
    sampling: SamplingParameters
    more: dict[str, Any]


@dataclass
class FakeEnsemble:
    """Answers each stream with `words`, one a chunk, cut by max_tokens; a prompt has its words.

    `script`: chunks, waits (seconds) and errors in place of that. `asked`: every stream so far.
    `open`: streams that have not ended; `cancelled`: those that were left before their end.
    """

    models: tuple[str, ...] = ("speller",)
    words: Sequence[str] = WORDS
    script: Sequence[Step] | None = None
    ready: bool = True
    inputs: tuple[str, ...] = ("text_input", "messages", "lora_name")
    failure: TritonctlError | None = None
    asked: list[Asked] = field(default_factory=list)
    open: int = 0
    cancelled: int = 0
    urls: list[str] = field(default_factory=list)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def connect(self, url: str) -> Any:
        """The `connect` of build_app."""
        self.urls.append(url)
        return self

    def reach(self, url: str) -> None:
        """As the client's."""

    def at(self, url: str) -> FakeEnsemble:
        """As the client's: every server is this one."""
        return self

    async def server_ready(self, seconds: float) -> bool:
        """As the client's."""
        if self.failure is not None:
            raise self.failure
        return self.ready

    async def model_config(self, model: str) -> dict[str, Any]:
        """As the client's."""
        return self.configs.get(model, {"name": model})

    async def close(self) -> None:
        """As the client's."""

    async def model_ready(self, model: str) -> bool:
        """As the client's."""
        if self.failure is not None:
            raise self.failure
        return self.ready and model in self.models

    async def describe_task(self, model: str) -> ServedTask:
        """As the client's."""
        if self.failure is not None:
            raise self.failure
        return ServedTask(model, TASKS["text_generation"], frozenset(self.inputs), 1, "1")

    async def stream(
        self, model: str, prompt: Prompt, sampling: SamplingParameters, **more: Any
    ) -> AsyncIterator[Chunk]:
        """As the client's."""
        more.pop("route", None)
        self.asked.append(Asked(model, prompt, sampling, more))
        if model not in self.models:
            raise RequestRejectedError(
                f"Triton refused the request: Request for unknown model: '{model}' is not found",
                remedy="",
            )
        script = self._answer(prompt, sampling) if self.script is None else self.script
        self.open += 1
        complete = False
        try:
            for step in script:
                if isinstance(step, TritonctlError):
                    raise step
                if isinstance(step, Chunk):
                    yield step
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(step)
            complete = True
        finally:
            self.open -= 1
            self.cancelled += not complete

    def _answer(self, prompt: Prompt, sampling: SamplingParameters) -> list[Chunk]:
        most = len(self.words) if sampling.max_tokens is None else sampling.max_tokens
        words = self.words[:most]
        reason = "stop" if len(words) == len(self.words) else "length"
        return chunks_of(words, reason, prompt_tokens=tokens_of(prompt))


def tokens_of(prompt: Prompt) -> int:
    """Words of a prompt, in place of tokens."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.ids)
    if isinstance(prompt, str | bytes):
        return len(prompt.split())
    messages = prompt.messages if isinstance(prompt, ChatPrompt) else prompt
    return sum(len(str(message["content"]).split()) for message in messages)


def chunks_of(words: Sequence[str], reason: str = "stop", *, prompt_tokens: int = 3) -> list[Chunk]:
    """An answer of one token a chunk."""
    return [
        Chunk(
            text=word,
            num_input_tokens=prompt_tokens,
            num_output_tokens=number,
            finish_reason=reason if number == len(words) else "",
            received_ns=time.monotonic_ns(),
            token_ids=(number,),
        )
        for number, word in enumerate(words, start=1)
    ]

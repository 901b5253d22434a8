# SPDX-License-Identifier: Apache-2.0
"""Counts prompts, for every model that the server has: exactly, or by a guess that says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.frontend.counting.context import ContextLimits
from tritonctl.frontend.counting.sources import source_of
from tritonctl.frontend.counting.worker import (
    CountingWorker,
    CountUnavailableError,
    Source,
    Tensors,
    TooLongToCountError,
)
from tritonctl.protocol.model_config import Config

_BYTES_A_TOKEN = 4
_TEMPLATE_TOKENS = 32  # special tokens, and what surrounds messages besides their JSON
_RESTART_SECONDS = 10.0


@dataclass(frozen=True)
class Count:
    """Tokens of a request's prompt, or of all its items; a guess unless `exact`.

    at_most: no fewer than there are, guess or not: no token has less than a byte.
    """

    tokens: int
    at_most: int
    exact: bool = True


@dataclass
class _Counted:
    worker: CountingWorker
    source: Source
    restarted: float = float("-inf")


class PromptCounter:
    """One for the frontend; `say` is told once for each model why it cannot be counted.

    repository: of the served models, where this process can read it. library: the folder that
    countlib lies in (python_backends).
    """

    def __init__(
        self,
        repository: Path | None,
        library: Path | None,
        say: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._library = library
        self._say = say
        self._clock = clock
        self._models: dict[str, _Counted] = {}
        self._limits: dict[str, ContextLimits] = {}
        self._said: set[str] = set()

    async def configure(self, model: str, configs: Mapping[str, Config]) -> None:
        """Take a model's configuration, and its steps', as the server runs them now."""
        self._limits[model] = ContextLimits.of(configs.values())
        source = None
        if self._repository is not None and self._library is not None:
            source = source_of(model, configs, self._repository)
        known = self._models.get(model)
        if source is None or self._library is None:
            await self.forget(model)
            self._once(model, "no tokenizer of it can be read here")
        elif known is None or known.source != source:
            await self.forget(model)
            worker = CountingWorker(source, self._library, clock=self._clock)
            self._models[model] = _Counted(worker, source)

    async def start(self) -> None:
        """Load every model's tokenizer now, so that the first request need not wait for it."""
        for model, counted in self._models.items():
            try:
                await counted.worker.start()
            except CountUnavailableError as error:
                self._once(model, str(error))

    async def count(self, model: str, tensors: Tensors) -> Count:
        """Of the public tensors that a request will send.

        Raises CountRefusedError for what the tokenizer step would refuse, ContextLengthError for a
        prompt that is longer than could be counted.
        """
        counted = self._models.get(model)
        if counted is None:
            return _guess(tensors)
        try:
            tokens = sum(await counted.worker.count(tensors))
        except CountUnavailableError as error:
            self._once(model, str(error))
            return _guess(tensors)
        except TooLongToCountError as error:
            raise self.limits(model).too_long(str(error).removesuffix(" tokens")) from error
        self._said.discard(model)
        return Count(tokens, tokens)

    def tokenizer(self, model: str) -> str | None:
        """Its tokenizer.json, the one that the server has; None where none can be read."""
        counted = self._models.get(model)
        return None if counted is None else str(counted.source.tokenizer)

    def limits(self, model: str) -> ContextLimits:
        """What fits into the model's context."""
        return self._limits.get(model, ContextLimits())

    async def served(self, model: str, count: Count, num_input_tokens: int) -> bool:
        """Compare with what the server counted; False, and the tokenizer is read again, if it
        differs: the model has been updated since."""
        counted = self._models.get(model)
        if counted is None or not count.exact or count.tokens == num_input_tokens:
            return True
        now = self._clock()
        if now - counted.restarted >= _RESTART_SECONDS:
            counted.restarted = now
            old = counted.worker
            counted.worker = old.again()
            await old.close()
        return False

    async def forget(self, model: str) -> None:
        """The model is not served any more."""
        if counted := self._models.pop(model, None):
            await counted.worker.close()

    async def close(self) -> None:
        """End all processes."""
        for model in list(self._models):
            await self.forget(model)

    def _once(self, model: str, reason: str) -> None:
        if model not in self._said:
            self._said.add(model)
            self._say(
                f"prompts of {model} are not counted before they are sent, their length is "
                f"guessed: {reason}"
            )


def most_tokens(texts: Sequence[bytes]) -> int:
    """No fewer than texts have, with what their template adds: no token has less than a byte."""
    return sum(map(len, texts)) + _TEMPLATE_TOKENS * (1 + len(texts))


def _guess(tensors: Tensors) -> Count:
    texts = [
        value.encode("utf-8", "surrogatepass")
        for values in tensors.values()
        for value in values
        if isinstance(value, str)
    ]
    size = sum(map(len, texts))
    return Count(max(1, -(-size // _BYTES_A_TOKEN)), most_tokens(texts), exact=False)

# SPDX-License-Identifier: Apache-2.0
"""Count the prompts of every model on the server, exactly or by an estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.frontend.counting.context import ContextLimits
from tritonctl.frontend.counting.sources import tokenizer_source_of
from tritonctl.frontend.counting.worker import (
    CountingWorker,
    CountUnavailableError,
    Tensors,
    TokenizerSource,
    TooLongToCountError,
)
from tritonctl.protocol.model_config import Config

_BYTES_A_TOKEN = 4
_TEMPLATE_TOKENS = 32  # special tokens, and the template's text around messages
_RESTART_SECONDS = 10.0


@dataclass(frozen=True)
class Count:
    """Tokens of a request's prompt, or of all its items."""

    tokens: int
    upper_bound: int  # valid for estimates, too: every token has at least one byte
    exact: bool = True  # otherwise `tokens` is an estimate


@dataclass
class _CountedModel:
    worker: CountingWorker
    source: TokenizerSource
    restarted: float = float("-inf")


class PromptCounter:
    """Counts prompts for all models of the frontend.

    repository: the model repository, if this process can read it. library: the folder that contains
    countlib (python_backends). warn: called once per model that cannot be counted.
    """

    def __init__(
        self,
        repository: Path | None,
        library: Path | None,
        warn: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._library = library
        self._warn = warn
        self._clock = clock
        self._models: dict[str, _CountedModel] = {}
        self._limits: dict[str, ContextLimits] = {}
        self._warned_models: set[str] = set()

    async def configure(self, model: str, configs: Mapping[str, Config]) -> None:
        """Apply the current configurations of a model and its steps."""
        self._limits[model] = ContextLimits.of(configs.values())
        source = None
        if self._repository is not None and self._library is not None:
            source = tokenizer_source_of(model, configs, self._repository)
        counted = self._models.get(model)
        if source is None or self._library is None:
            await self.forget(model)
            self._warn_once(model, "this process cannot read its tokenizer")
        elif counted is None or counted.source != source:
            await self.forget(model)
            worker = CountingWorker(source, self._library, clock=self._clock)
            self._models[model] = _CountedModel(worker, source)

    async def start(self) -> None:
        """Load every model's tokenizer now, so that the first request does not wait for it."""
        for model, counted in self._models.items():
            try:
                await counted.worker.start()
            except CountUnavailableError as error:
                self._warn_once(model, str(error))

    async def count(self, model: str, tensors: Tensors) -> Count:
        """Count the tokens of a request's public tensors.

        Raises CountRefusedError if the tokenizer step would refuse the request, ContextLengthError
        for a prompt that is too long to be counted.
        """
        counted = self._models.get(model)
        if counted is None:
            return _guess(tensors)
        try:
            tokens = sum(await counted.worker.count(tensors))
        except CountUnavailableError as error:
            self._warn_once(model, str(error))
            return _guess(tensors)
        except TooLongToCountError as error:
            raise self.limits(model).too_long(str(error).removesuffix(" tokens")) from error
        self._warned_models.discard(model)
        return Count(tokens, tokens)

    def tokenizer(self, model: str) -> str | None:
        """Return the path of the server's tokenizer.json; None if it cannot be read."""
        counted = self._models.get(model)
        return None if counted is None else str(counted.source.tokenizer)

    def limits(self, model: str) -> ContextLimits:
        """Return the model's context limits."""
        return self._limits.get(model, ContextLimits())

    async def compare_with_server(self, model: str, count: Count, num_input_tokens: int) -> bool:
        """Compare with the server's count.

        If the counts differ, the model was updated: load the tokenizer again and return False.
        """
        counted = self._models.get(model)
        if counted is None or not count.exact or count.tokens == num_input_tokens:
            return True
        now = self._clock()
        if now - counted.restarted >= _RESTART_SECONDS:
            counted.restarted = now
            old = counted.worker
            counted.worker = old.recreate()
            await old.close()
        return False

    async def forget(self, model: str) -> None:
        """Stop counting a model that is no longer deployed."""
        if counted := self._models.pop(model, None):
            await counted.worker.close()

    async def close(self) -> None:
        """End all processes."""
        for model in list(self._models):
            await self.forget(model)

    def _warn_once(self, model: str, reason: str) -> None:
        if model not in self._warned_models:
            self._warned_models.add(model)
            self._warn(
                f"prompts of {model} are not counted before they are sent; their length is "
                f"estimated: {reason}"
            )


def max_token_count(texts: Sequence[bytes]) -> int:
    """Upper bound for texts with their template: every token has at least one byte."""
    return sum(map(len, texts)) + _TEMPLATE_TOKENS * (1 + len(texts))


def _guess(tensors: Tensors) -> Count:
    texts = [
        value.encode("utf-8", "surrogatepass")
        for values in tensors.values()
        for value in values
        if isinstance(value, str)
    ]
    size = sum(map(len, texts))
    return Count(max(1, -(-size // _BYTES_A_TOKEN)), max_token_count(texts), exact=False)

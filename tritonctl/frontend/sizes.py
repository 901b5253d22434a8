# SPDX-License-Identifier: Apache-2.0
"""How large a request may become, before anything is sent: what budgets reserve."""

from __future__ import annotations

from typing import Protocol

from tritonctl.protocol.generation import Prompt, SamplingParameters

_TEMPLATE_TOKENS = 32  # around a message, and at the end


class Sized(Protocol):
    """What TextAsked has."""

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Texts, or conversations."""

    @property
    def sampling(self) -> SamplingParameters:
        """Of each answer."""


class Sizes(Protocol):
    """Counts, or bounds."""

    async def of(self, asked: Sized) -> tuple[int, int | None]:
        """Tokens of all prompts, and of each answer: at most. None: not known.

        Raises ApiError for a request that cannot fit.
        """


class BytesAsTokens:
    """A bound without a tokenizer: no token has less than a byte."""

    async def of(self, asked: Sized) -> tuple[int, int | None]:
        """As in Sizes; the answer's as the request says."""
        return sum(map(_bytes, asked.prompts)), asked.sampling.max_tokens


def _bytes(prompt: Prompt) -> int:
    texts: list[object] = [prompt]
    if not isinstance(prompt, str | bytes):
        texts = [value for message in prompt for value in message.values()]
    sizes = [len(one) if isinstance(one, bytes) else len(str(one).encode()) for one in texts]
    return sum(sizes) + _TEMPLATE_TOKENS * (1 + len(sizes))

# SPDX-License-Identifier: Apache-2.0
"""A request for generated text, independent of its endpoint, and its token usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonctl.frontend import errors
from tritonctl.frontend.models import RequestTarget
from tritonctl.protocol.generation import Prompt, SamplingParameters


@dataclass(frozen=True)
class TextGenerationRequest:
    """A request to one model. Answer i of prompt p has the index p * choices + i."""

    target: RequestTarget
    prompts: tuple[Prompt, ...]
    sampling: SamplingParameters
    choices: int  # answers per prompt
    prompt_field: str  # the client's field of the prompt
    # The client's fields by tensor of the ensemble.
    fields: Mapping[str, str] = field(default_factory=lambda: errors.FIELDS)

    @property
    def answer_count(self) -> int:
        """Number of answers to all prompts."""
        return len(self.prompts) * self.choices

    @property
    def trace_attributes(self) -> dict[str, Any]:
        """Attributes of GenAI's conventions, by the last part of `gen_ai.request.*`."""
        sampling = self.sampling
        return {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "seed": sampling.random_seed,
            "choice.count": self.choices if self.choices > 1 else None,
        }


@dataclass
class Usage:
    """Tokens counted by the server. A prompt with several answers counts once."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def record(self) -> dict[str, int]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

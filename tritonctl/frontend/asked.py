# SPDX-License-Identifier: Apache-2.0
"""What one request asks of a model for text, and the tokens that it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonctl.frontend import errors
from tritonctl.frontend.models import Target
from tritonctl.protocol.generation import Prompt, SamplingParameters


@dataclass(frozen=True)
class TextAsked:
    """What one request asks of a model. `prompt_field`: what the client calls its prompt.

    `choices`: answers to each prompt; answer i of prompt p has the index p * choices + i.
    `fields`: what the client calls the ensemble's tensors.
    """

    target: Target
    prompts: tuple[Prompt, ...]
    sampling: SamplingParameters
    choices: int
    prompt_field: str
    fields: Mapping[str, str] = field(default_factory=lambda: errors.FIELDS)

    @property
    def answers(self) -> int:
        """To all prompts together."""
        return len(self.prompts) * self.choices

    @property
    def named(self) -> dict[str, Any]:
        """What GenAI's conventions have a name for."""
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
    """Tokens as the server counted them. Several answers to a prompt read it once."""

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

# SPDX-License-Identifier: Apache-2.0
"""A model's context limits, from the configuration that the server runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tritonctl.protocol.model_config import Config

# Parameters in config.pbtxt of our engines and tokenizers.
_SEQUENCE, _INPUT = "max_seq_len", "max_input_len"
_BLOCKS, _BLOCK = "num_kv_blocks", "block_size"


class ContextLengthError(Exception):
    """A request that does not fit into the context. Its text is OpenAI's.

    `prompt_alone`: the prompt is too long; otherwise `max_tokens` is too large.
    """

    def __init__(self, text: str, *, prompt_alone: bool) -> None:
        super().__init__(text)
        self.prompt_alone = prompt_alone


@dataclass(frozen=True)
class ContextLimits:
    """Limits in tokens. None: unknown."""

    context: int | None = None  # prompt and answer together
    prompt: int | None = None  # the prompt alone

    @classmethod
    def of(cls, configs: Iterable[Config]) -> ContextLimits:
        """The tightest limits in the configurations of a model and its steps."""
        sequence, prompt, cache = [], [], []
        for config in configs:
            values = _numbers(config.get("parameters") or {})
            sequence += [values[_SEQUENCE]] if _SEQUENCE in values else []
            prompt += [values[_INPUT]] if _INPUT in values else []
            if _BLOCKS in values and _BLOCK in values:
                cache.append(values[_BLOCKS] * values[_BLOCK])
        # No request can be longer than the KV cache.
        return cls(min(sequence + cache, default=None), min(prompt, default=None))

    def answer_room(self, prompt_tokens: int, max_tokens: int | None) -> int | None:
        """Return the maximum number of answer tokens; None if no limit is known or requested.

        Without `max_tokens` it is the remaining context. Raises ContextLengthError.
        """
        if self.prompt is not None and prompt_tokens > self.prompt:
            raise self.too_long(str(prompt_tokens))
        if self.context is None:
            return max_tokens
        room = self.context - prompt_tokens
        if room <= 0:
            raise self.too_long(str(prompt_tokens))
        if max_tokens is not None and max_tokens > room:
            raise ContextLengthError(
                f"This model's maximum context length is {self.context} tokens. However, you "
                f"requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the prompt, "
                f"{max_tokens} in the completion). Ask for at most {room}, or shorten the prompt.",
                prompt_alone=False,
            )
        return room if max_tokens is None else max_tokens

    def too_long(self, tokens: str) -> ContextLengthError:
        """Create the error for a prompt. tokens: a number, or `more than` a number."""
        limit, limit_name = self.context, "maximum context length"
        if self.prompt is not None and (limit is None or self.prompt < limit - 1):
            limit, limit_name = self.prompt, "longest prompt (max_input_len)"
        return ContextLengthError(
            f"This model's {limit_name} is {limit} tokens. However, your prompt has {tokens} "
            "tokens. Shorten the prompt.",
            prompt_alone=True,
        )


def _numbers(parameters: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Return the parameters that are positive integers."""
    texts = {name: str(value.get("string_value", "")).strip() for name, value in parameters.items()}
    return {name: int(text) for name, text in texts.items() if text.isdecimal() and int(text)}

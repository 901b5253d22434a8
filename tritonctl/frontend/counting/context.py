# SPDX-License-Identifier: Apache-2.0
"""What fits into a model's context, by the limits in the configuration that the server runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tritonctl.protocol.model_config import Config

# Parameters of our engines' and tokenizers' config.pbtxt.
_SEQUENCE, _INPUT = "max_seq_len", "max_input_len"
_BLOCKS, _BLOCK = "num_kv_blocks", "block_size"


class ContextLengthError(Exception):
    """A request that cannot fit. `param`: whether the prompt alone is too long, or max_tokens is.

    The text is OpenAI's, with the numbers of this request.
    """

    def __init__(self, text: str, *, prompt_alone: bool) -> None:
        super().__init__(text)
        self.prompt_alone = prompt_alone


@dataclass(frozen=True)
class ContextLimits:
    """Tokens. context: prompt and answer together. prompt: the prompt alone. None: not known."""

    context: int | None = None
    prompt: int | None = None

    @classmethod
    def of(cls, configs: Iterable[Config]) -> ContextLimits:
        """The tightest of a model and its steps; what no configuration says is None."""
        sequence, prompt, cache = [], [], []
        for config in configs:
            values = _numbers(config.get("parameters") or {})
            sequence += [values[_SEQUENCE]] if _SEQUENCE in values else []
            prompt += [values[_INPUT]] if _INPUT in values else []
            if _BLOCKS in values and _BLOCK in values:
                cache.append(values[_BLOCKS] * values[_BLOCK])
        # A request alone in the KV cache is the longest that there can be.
        return cls(min(sequence + cache, default=None), min(prompt, default=None))

    def answer_room(self, prompt_tokens: int, max_tokens: int | None) -> int | None:
        """How many tokens the answer may have; None where no limit is known and none was given.

        Without `max_tokens`: all that the context has left. Raises ContextLengthError.
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
        """The error for a prompt of so many tokens: a number, or `more than` one."""
        limit, what = self.context, "maximum context length"
        if self.prompt is not None and (limit is None or self.prompt < limit - 1):
            limit, what = self.prompt, "longest prompt (max_input_len)"
        return ContextLengthError(
            f"This model's {what} is {limit} tokens. However, your prompt has {tokens} tokens. "
            "Shorten the prompt.",
            prompt_alone=True,
        )


def _numbers(parameters: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Those parameters that are whole numbers above 0."""
    texts = {name: str(value.get("string_value", "")).strip() for name, value in parameters.items()}
    return {name: int(text) for name, text in texts.items() if text.isdecimal() and int(text)}

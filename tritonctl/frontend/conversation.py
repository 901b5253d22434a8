# SPDX-License-Identifier: Apache-2.0
"""A conversation that the model continues, independent of its endpoint.

/v1/chat/completions and /v1/responses differ in their fields and in the form of their answers. What
the fields mean together, and how an answer's text is read, is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.frontend import errors
from tritonctl.frontend.guides import GUIDE_TENSORS, AnswerGuide, with_guide
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.reasoning import AnswerReader, with_reasoning
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.text_request import TextGenerationRequest
from tritonctl.frontend.tools.fields import ToolUse
from tritonctl.protocol.generation import ChatPrompt, Message, Prompt, SamplingParameters


@dataclass(frozen=True)
class Conversation:
    """Messages with what the answer to them may be."""

    messages: Sequence[Message]  # in the form of the ensemble's `messages`
    tools: ToolUse
    variables: Mapping[str, Any] | None = None  # further ones of the chat template
    refuses_system: bool = False  # if its template has no system role

    def to_generation(
        self,
        target: RequestTarget,
        sampling: SamplingParameters,
        *,
        prompt_field: str,
        choices: int = 1,
        fields: Mapping[str, str] = errors.FIELDS,
    ) -> TextGenerationRequest:
        """Convert to a generation request. Raises ApiError for a guide that is too long.

        prompt_field, fields: as of TextGenerationRequest.
        """
        schema, field_name = self.tools.guide, self.tools.guide_field
        if schema is not None:
            sampling = with_guide(sampling, AnswerGuide(schema, field_name))
            fields = {**fields, **dict.fromkeys(GUIDE_TENSORS, field_name)}
        return TextGenerationRequest(
            target, (self._prompt(),), sampling, choices, prompt_field, fields
        )

    def _prompt(self) -> Prompt:
        tools = self.tools.template_tools
        refuses_system = self.refuses_system and any(
            message["role"] == "system" for message in self.messages
        )
        if not (tools or self.variables or refuses_system):
            return self.messages
        return ChatPrompt(self.messages, tools, self.variables, refuses_system)


def answer_reader(
    use: ToolUse, generation: TextGenerationRequest, text: TextModel
) -> AnswerReader | None:
    """Create the reader of one answer's text; None: all of it is content."""
    # Guided decoding starts with the first token, so there are no thoughts.
    is_guided = generation.sampling.guided_decoding_guide_type is not None
    return with_reasoning(use.reader(), None if is_guided else text.reasoning)

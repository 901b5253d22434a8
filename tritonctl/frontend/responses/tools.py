# SPDX-License-Identifier: Apache-2.0
"""The tool fields of /v1/responses: those of /v1/chat/completions without the inner object."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tritonctl.frontend.bodies import Body, Off
from tritonctl.frontend.tools.fields import (
    MAX_TOOLS,
    ChoiceMode,
    FunctionTool,
    Name,
    Tool,
    ToolSelection,
)

TOOL_NAME_FIELD = "tools[{}].name"
_CHAT_FIELDS = ("name", "description", "parameters", "strict")


class FlatTool(FunctionTool):
    """A function that the model may call. Only functions are supported."""

    type: Literal["function"]
    allowed_callers: Annotated[list[Literal["direct"]], Field(fail_fast=True)] | None = Field(
        None, description="the model itself"
    )
    defer_loading: Off | None = Field(None, description="not supported")
    output_schema: dict[str, Any] | None = Field(None, description="not part of the prompt")

    @property
    def in_chat_form(self) -> Tool:
        """The tool in the form of /v1/chat/completions, which chat templates know."""
        fields = {
            name: getattr(self, name) for name in _CHAT_FIELDS if name in self.model_fields_set
        }
        return Tool(type="function", function=FunctionTool(**fields))


class FlatNamedChoice(Body):
    """A choice of exactly one function."""

    type: Literal["function"]
    name: Name


class FlatAllowedChoice(Body):
    """A choice of some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[FlatNamedChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    ]


FlatTools = Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
FlatChoice = (
    ChoiceMode | Annotated[FlatNamedChoice | FlatAllowedChoice, Field(discriminator="type")]
)


def selection_of(choice: FlatChoice | None) -> ToolSelection:
    """Convert the request's field."""
    mode: ChoiceMode = "auto"
    function, allowed = None, None
    match choice:
        case FlatNamedChoice():
            function = choice.name
        case FlatAllowedChoice():
            mode, allowed = choice.mode, [tool.name for tool in choice.tools]
        case "none" | "auto" | "required":
            mode = choice
    return ToolSelection(
        mode,
        function,
        allowed,
        function_field="tool_choice.name",
        allowed_field="tool_choice.tools[{}].name",
    )

# SPDX-License-Identifier: Apache-2.0
"""The tool fields of /v1/chat/completions, and their resolution for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from tritonctl.frontend.bodies import Body
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.guides import AnswerGuide
from tritonctl.frontend.json_structure import count_marks_in_steps
from tritonctl.frontend.tools.formats import FORMATS, CallFormat
from tritonctl.frontend.tools.guided import (
    NamedCall,
    RequiredCalls,
    TextOrCalls,
    named_guide,
    required_guide,
    text_or_calls_guide,
)
from tritonctl.frontend.tools.json_text import read_json
from tritonctl.frontend.tools.stream import CallStream

MAX_TOOLS = 128
Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Schema = dict[str, Any]

_NO_ARGUMENTS = "{}"
CallReader = CallStream | NamedCall | RequiredCalls | TextOrCalls


class FunctionTool(Body):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: Schema | None = Field(None, description="a JSON schema; none: no parameters")
    strict: bool | None = Field(None, description="a call that is forced follows its schema always")


class Tool(Body):
    """A tool. Only functions are supported; the frontend runs no tools."""

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(Body):
    """The function of a named choice."""

    name: Name


class NamedChoice(Body):
    """A choice of exactly one function."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    """The tools that the model may call, and whether it must."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedChoice(Body):
    """A choice of some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ChoiceMode = Literal["none", "auto", "required"]
ToolChoice = ChoiceMode | Annotated[NamedChoice | AllowedChoice, Field(discriminator="type")]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class CalledFunction(Body):
    """A function that the model called."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str = Field(description="a JSON object; an empty text: no arguments")
    parsed_arguments: Any = Field(None, exclude=True, description="OpenAI's client adds it")


class EarlierCall(Body):
    """A call in an earlier message of the assistant."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="of a streamed answer; not part of the prompt")

    @property
    def for_template(self) -> Mapping[str, Any]:
        """The call in the form of chat templates."""
        function = self.function.model_dump()
        function["arguments"] = function["arguments"].strip() or _NO_ARGUMENTS
        return {"id": self.id, "type": self.type, "function": function}

    def check(self, path: str) -> None:
        """Raise ApiError if the arguments are not a JSON object. path: of the call."""
        check_arguments(self.function.arguments, f"{path}.function.arguments")


def check_arguments(arguments: str, param: str) -> None:
    """Raise ApiError for arguments that are not a JSON object. param: their path."""
    text = arguments.strip() or _NO_ARGUMENTS
    for _ in count_marks_in_steps(text.encode("utf-8")):
        pass
    try:
        value = read_json(text)
    except ValueError as error:
        problem = f"is not JSON ({error})"
    else:
        if isinstance(value, dict):
            return
        problem = "is not a JSON object"
    raise _refusal(
        param, f"`{param}` {problem}: send it as the model wrote it, or without a broken call"
    )


@dataclass(frozen=True)
class ToolSelection:
    """A `tool_choice`, independent of its endpoint."""

    mode: ChoiceMode = "auto"
    function: str | None = None  # the one that must be called
    allowed: Sequence[str] | None = None  # functions that may be called; None: all
    # The request's fields of these names, the second with {} for an index.
    function_field: str = "tool_choice.function.name"
    allowed_field: str = "tool_choice.allowed_tools.tools[{}].function.name"

    @classmethod
    def of(cls, choice: ToolChoice | None) -> ToolSelection:
        """The selection of /v1/chat/completions' field."""
        match choice:
            case NamedChoice():
                return cls(function=choice.function.name)
            case AllowedChoice():
                allowed = choice.allowed_tools
                return cls(allowed.mode, allowed=[tool.function.name for tool in allowed.tools])
            case _:
                return cls(choice or "auto")

    @property
    def is_default(self) -> bool:
        """Whether it makes no sense without tools, but does no harm either."""
        return self.mode != "required" and self.function is None and self.allowed is None


@dataclass(frozen=True)
class ToolUse:
    """How one request uses tools."""

    template_tools: Sequence[Mapping[str, Any]] = ()  # for the chat template; (): no tools
    schemas: Mapping[str, Schema] = field(default_factory=dict)  # parameters by function
    guide: Schema | None = None  # JSON schema of the whole answer, with calls and text
    guide_field: str = "tool_choice"  # the request's field that sets the guide
    has_text: bool = True  # whether a guided answer may be text instead of calls
    forced_function: str | None = None
    max_calls: int | None = None  # None: any number
    markup: CallFormat | None = None

    def reader(self) -> CallReader | None:
        """Create the reader that extracts calls from one answer; None: all of it is text."""
        if self.markup is None:
            return None
        if self.forced_function is not None:
            return NamedCall(self.forced_function, self.markup.make_id)
        if self.guide is not None and self.has_text:
            return TextOrCalls(self.markup.make_id)
        if self.guide is not None:
            return RequiredCalls(self.markup.make_id)
        return CallStream(self.markup, self.schemas, self.max_calls)


def resolve_tool_use(
    tools: Sequence[Tool] | None,
    selection: ToolSelection,
    *,
    text_guide: AnswerGuide | None,
    parallel: bool | None,
    tool_format: str | None,
    model: str,
    name_field: str = "tools[{}].function.name",
) -> ToolUse:
    """Resolve the tool fields. Raises ApiError that names the wrong one.

    text_guide: of the answer's text. tool_format: the model's; None: unknown. model: its name in
    the request. name_field: the request's field of a tool's name, with {} for the tool's index.
    """
    if not tools:
        if not selection.is_default:
            raise _refusal("tool_choice", "`tool_choice` is only for requests with `tools`")
        return _without_tools(text_guide)
    by_name: dict[str, Tool] = {}
    for number, tool in enumerate(tools):
        name = tool.function.name
        if name in by_name:
            raise _refusal(name_field.format(number), f"two tools are named `{name}`")
        by_name[name] = tool
    allowed = _select(by_name, selection)
    if selection.mode == "none":
        return _without_tools(text_guide)
    if tool_format is None:
        raise _refusal(
            "tools",
            f"`tools` is not supported by the model `{model}`: its chat template shows no tools, "
            "or calls them in an unknown way",
            "unsupported_parameter",
        )
    schemas = {
        tool.function.name: tool.function.parameters or {"type": "object", "properties": {}}
        for tool in allowed
    }
    use = ToolUse(
        template_tools=[tool.model_dump(exclude_unset=True) for tool in allowed],
        schemas=schemas,
        forced_function=selection.function,
        max_calls=1 if parallel is False else None,
        markup=FORMATS[tool_format],
    )
    return _with_guide(use, selection, text_guide)


def _with_guide(use: ToolUse, selection: ToolSelection, text_guide: AnswerGuide | None) -> ToolUse:
    """Add the guide of calls that are forced, or that stand next to guided text."""
    if selection.function is not None:
        return replace(use, guide=named_guide(use.schemas[selection.function]), has_text=False)
    if selection.mode == "required":
        calls_guide = required_guide(use.schemas, max_calls=use.max_calls)
        return replace(use, guide=calls_guide, has_text=False)
    if text_guide is not None:
        guide = text_or_calls_guide(text_guide.schema, use.schemas, max_calls=use.max_calls)
        if guide is None:
            raise _refusal(
                text_guide.field,
                f"`{text_guide.field}`: next to tools that may be called, the schema must be of "
                "`type: object`",
            )
        return replace(use, guide=guide, guide_field=text_guide.field)
    return use


def _without_tools(text_guide: AnswerGuide | None) -> ToolUse:
    if text_guide is None:
        return ToolUse()
    return ToolUse(guide=dict(text_guide.schema), guide_field=text_guide.field)


def _select(by_name: Mapping[str, Tool], selection: ToolSelection) -> list[Tool]:
    """Return the tools that may be called. Raises ApiError for a name without a tool."""
    names = {selection.function_field: selection.function} if selection.function else {}
    for number, name in enumerate(selection.allowed or ()):
        names[selection.allowed_field.format(number)] = name
    for field_path, name in names.items():
        if name not in by_name:
            expected = ", ".join(sorted(by_name))
            raise _refusal(field_path, f"no tool is named `{name}`, expected one of {expected}")
    if selection.allowed is None:
        return list(by_name.values())
    return [tool for name, tool in by_name.items() if name in selection.allowed]


def _refusal(param: str, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, text, code=code, param=param)

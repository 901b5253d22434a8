# SPDX-License-Identifier: Apache-2.0
"""The tool fields of /v1/chat/completions, and their resolution for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from tritonctl.frontend.bodies import Body
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.json_structure import count_marks_in_steps
from tritonctl.frontend.tools.formats import FORMATS, CallFormat
from tritonctl.frontend.tools.guided import NamedCall, RequiredCalls, named_guide, required_guide
from tritonctl.frontend.tools.json_text import read_json
from tritonctl.frontend.tools.stream import CallStream

MAX_TOOLS = 128
Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Schema = dict[str, Any]

_NO_ARGUMENTS = "{}"
CallReader = CallStream | NamedCall | RequiredCalls


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


ToolChoice = Literal["none", "auto", "required"] | NamedChoice
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
        arguments = self.function.arguments.strip() or _NO_ARGUMENTS
        for _ in count_marks_in_steps(arguments.encode("utf-8")):
            pass
        try:
            value = read_json(arguments)
        except ValueError as error:
            problem = f"is not JSON ({error})"
        else:
            if isinstance(value, dict):
                return
            problem = "is not a JSON object"
        param = f"{path}.function.arguments"
        raise _refusal(
            param, f"`{param}` {problem}: send it as the model wrote it, or without a broken call"
        )


@dataclass(frozen=True)
class ToolUse:
    """How one request uses tools."""

    template_tools: Sequence[Mapping[str, Any]] = ()  # for the chat template; (): no tools
    schemas: Mapping[str, Schema] = field(default_factory=dict)  # parameters by function
    guide: Schema | None = None  # JSON schema of the whole answer, if calls are forced
    forced_function: str | None = None
    max_calls: int | None = None  # None: any number
    markup: CallFormat | None = None

    def reader(self) -> CallReader | None:
        """Create the reader that extracts calls from one answer; None: all of it is text."""
        if self.markup is None:
            return None
        if self.forced_function is not None:
            return NamedCall(self.forced_function, self.markup.make_id)
        if self.guide is not None:
            return RequiredCalls(self.markup.make_id)
        return CallStream(self.markup, self.schemas, self.max_calls)


NO_TOOLS = ToolUse()


def resolve_tool_use(
    tools: Sequence[Tool] | None,
    choice: ToolChoice | None,
    *,
    parallel: bool | None,
    tool_format: str | None,
    model: str,
) -> ToolUse:
    """Resolve the tool fields. Raises ApiError that names the wrong one.

    tool_format: the model's; None: unknown. model: its name in the request.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise _refusal("tool_choice", "`tool_choice` is only for requests with `tools`")
        return NO_TOOLS
    schemas: dict[str, Schema] = {}
    for number, tool in enumerate(tools):
        name = tool.function.name
        if name in schemas:
            raise _refusal(
                f"tools[{number}].function.name", f"two tools are named `{name}`", "invalid_value"
            )
        schemas[name] = tool.function.parameters or {"type": "object", "properties": {}}
    if isinstance(choice, NamedChoice) and choice.function.name not in schemas:
        names = ", ".join(sorted(schemas))
        raise _refusal(
            "tool_choice.function.name",
            f"no tool is named `{choice.function.name}`, expected one of {names}",
            "invalid_value",
        )
    if choice == "none":
        return NO_TOOLS
    if tool_format is None:
        raise _refusal(
            "tools",
            f"`tools` is not supported by the model `{model}`: its chat template shows no tools, "
            "or calls them in an unknown way",
            "unsupported_parameter",
        )
    return _resolve_use(tools, schemas, choice, parallel=parallel, markup=FORMATS[tool_format])


def _resolve_use(
    tools: Sequence[Tool],
    schemas: Mapping[str, Schema],
    choice: ToolChoice | None,
    *,
    parallel: bool | None,
    markup: CallFormat,
) -> ToolUse:
    max_calls = 1 if parallel is False else None
    forced_function = choice.function.name if isinstance(choice, NamedChoice) else None
    guide = None
    if forced_function is not None:
        guide = named_guide(schemas[forced_function])
    elif choice == "required":
        guide = required_guide(schemas, max_calls=max_calls)
    template_tools = [tool.model_dump(exclude_unset=True) for tool in tools]
    return ToolUse(template_tools, schemas, guide, forced_function, max_calls, markup)


def _refusal(param: str, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, text, code=code, param=param)

# SPDX-License-Identifier: Apache-2.0
"""The fields about tools in a body of /v1/chat/completions, and what they ask of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from tritonctl.frontend.bodies import Body
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.tools.formats import FORMATS, Format
from tritonctl.frontend.tools.guided import NamedCall, RequiredCalls, named_guide, required_guide
from tritonctl.frontend.tools.stream import CallStream

MOST_TOOLS = 128
Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Schema = dict[str, Any]

Reader = CallStream | NamedCall | RequiredCalls


class FunctionTool(Body):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: Schema | None = Field(None, description="a JSON schema; none: no parameters")
    strict: bool | None = Field(None, description="a call that is forced follows its schema always")


class Tool(Body):
    """Functions alone: nothing is run here."""

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(Body):
    """The name in a choice."""

    name: Name


class NamedChoice(Body):
    """This function and no other."""

    type: Literal["function"]
    function: NamedFunction


Choice = Literal["none", "auto", "required"] | NamedChoice
Tools = Annotated[list[Tool], Field(max_length=MOST_TOOLS)]


class CalledFunction(Body):
    """What the model called. arguments: text, of a JSON object where the model made no mistake."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    parsed_arguments: Any = Field(None, exclude=True, description="OpenAI's client adds it")


class EarlierCall(Body):
    """A call in an earlier message of the assistant."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="of a streamed answer; not part of the prompt")

    @property
    def plain(self) -> Mapping[str, Any]:
        """As chat templates have it."""
        return {"id": self.id, "type": self.type, "function": self.function.model_dump()}


@dataclass(frozen=True)
class ToolUse:
    """How one request uses tools; `shown` none: not at all.

    shown: what the chat template is given. guide: the JSON schema of the whole answer, where calls
    are forced. most_calls: None for any number.
    """

    shown: Sequence[Mapping[str, Any]] = ()
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    guide: Schema | None = None
    named: str | None = None
    most_calls: int | None = None
    markup: Format | None = None

    def reader(self) -> Reader | None:
        """What takes calls out of one answer; None: all of it is text."""
        if self.markup is None:
            return None
        if self.named is not None:
            return NamedCall(self.named, self.markup.make_id)
        if self.guide is not None:
            return RequiredCalls(self.markup.make_id)
        return CallStream(self.markup, self.schemas, self.most_calls)


NO_TOOLS = ToolUse()


def tool_use(
    tools: Sequence[Tool] | None,
    choice: Choice | None,
    *,
    parallel: bool | None,
    tool_format: str | None,
    model: str,
) -> ToolUse:
    """What the fields ask for. Raises ApiError that names one of them.

    tool_format: of the model, None where it is unknown. model: its name, as the client wrote it.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise _refused("tool_choice", "`tool_choice` is only for requests with `tools`")
        return NO_TOOLS
    schemas: dict[str, Schema] = {}
    for number, tool in enumerate(tools):
        name = tool.function.name
        if name in schemas:
            raise _refused(
                f"tools[{number}].function.name", f"two tools are called `{name}`", "invalid_value"
            )
        schemas[name] = tool.function.parameters or {"type": "object", "properties": {}}
    if isinstance(choice, NamedChoice) and choice.function.name not in schemas:
        known = ", ".join(sorted(schemas))
        raise _refused(
            "tool_choice.function.name",
            f"no tool is called `{choice.function.name}`, expected one of {known}",
            "invalid_value",
        )
    if choice == "none":
        return NO_TOOLS
    if tool_format is None:
        raise _refused(
            "tools",
            f"`tools` is not supported by the model `{model}`: its chat template shows no tools, "
            "or calls them in an unknown way",
            "unsupported_parameter",
        )
    return _used(tools, schemas, choice, parallel=parallel, markup=FORMATS[tool_format])


def _used(
    tools: Sequence[Tool],
    schemas: Mapping[str, Schema],
    choice: Choice | None,
    *,
    parallel: bool | None,
    markup: Format,
) -> ToolUse:
    most = 1 if parallel is False else None
    named = choice.function.name if isinstance(choice, NamedChoice) else None
    guide = None
    if named is not None:
        guide = named_guide(schemas[named])
    elif choice == "required":
        guide = required_guide(schemas, most_calls=most)
    shown = [tool.model_dump(exclude_unset=True) for tool in tools]
    return ToolUse(shown, schemas, guide, named, most, markup)


def _refused(param: str, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, text, code=code, param=param)

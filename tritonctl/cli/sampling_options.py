# SPDX-License-Identifier: Apache-2.0
"""Options of commands that query a model: sampling, queueing and resuming."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from tritonctl.cli.vocabulary import CONNECTION, SAMPLING
from tritonctl.errors import UsageError
from tritonctl.protocol.sampling_table import SamplingParameter, sampling_parameters

if TYPE_CHECKING:
    from tritonctl.protocol.generation import SamplingParameters

_ANY_JSON, _JSON_SCHEMA = "json", "json_schema"
_GUIDES = (_ANY_JSON, _JSON_SCHEMA, "regex", "ebnf_grammar")

Stop = Annotated[list[str] | None, typer.Option(help="text that ends the answer; repeatable")]
IncludeStopWord = Annotated[
    bool, typer.Option("--include-stop-word", help="show the text that ended the answer")
]
EndId = Annotated[
    list[int] | None, typer.Option(help="token id that ends the answer, -1: no id; repeatable")
]
Echo = Annotated[
    bool, typer.Option("--echo", help="begin the answer with the prompt; it comes in one piece")
]
LogProbs = Annotated[
    bool, typer.Option("--log-probs", help="log probability of each token, with --json")
]
Priority = Annotated[int | None, typer.Option(help="priority in the server's queue, 1 goes first")]
QueueTimeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="maximum time in that queue")
]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="seconds for a whole request")
]
ResumeOn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT",
        help="server that continues the answer if this one dies; repeatable",
        rich_help_panel=CONNECTION,
    ),
]
MaxResumes = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="maximum resumes elsewhere",
        show_default="once each; 30 on itself",
        rich_help_panel=CONNECTION,
    ),
]


@dataclass(frozen=True)
class _SamplingOptions:
    """The limit of an answer, and how its tokens are chosen."""

    panel: ClassVar[str] = SAMPLING

    max_tokens: Annotated[int | None, typer.Option(help="maximum tokens of an answer")] = None

    def parameters(self, engine_options: EngineSamplingOptions) -> SamplingParameters:
        """Combine both groups of options. Raises UsageError."""
        from tritonctl.protocol.generation import SamplingParameters

        fields = {
            parameter.request_field: getattr(self, name)
            for name, parameter in sampling_parameters().items()
        }
        return SamplingParameters(self.max_tokens, **fields, **engine_options.fields())


def _sampling_option(name: str, parameter: SamplingParameter) -> tuple[str, Any, Any]:
    """Return name, type and default of a parameter's option."""
    minimum = 0 if parameter.data_type == "TYPE_UINT64" else None
    option = typer.Option(help=parameter.tensor_doc, min=minimum)
    return name, Annotated[parameter.python_type | None, option], None


if TYPE_CHECKING:  # type checkers know no fields of a class that is made at run time
    SamplingOptions = _SamplingOptions
else:
    # An option for each parameter of textlib/triton/sampling.json.
    SamplingOptions = make_dataclass(
        "SamplingOptions",
        [_sampling_option(name, each) for name, each in sampling_parameters().items()],
        bases=(_SamplingOptions,),
        frozen=True,
    )


@dataclass(frozen=True)
class EngineSamplingOptions:
    """Sampling options that only some engines support."""

    panel: ClassVar[str] = SAMPLING

    lora: Annotated[str | None, typer.Option(metavar="NAME", help="LoRA adapter of the engine")] = (
        None
    )
    guide: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="what the answer must match: json, json_schema=TEXT, regex=TEXT or "
            "ebnf_grammar=TEXT; @FILE for TEXT reads a file",
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """Return the fields for SamplingParameters. Raises UsageError for an unknown guide."""
        kind, _, text = (self.guide or "").partition("=")
        if self.guide is not None:
            text = _guide_text(kind, text)
        return {
            "lora_name": self.lora,
            "guided_decoding_guide_type": kind or None,
            "guided_decoding_guide": text or None,
        }


def _guide_text(kind: str, value: str) -> str:
    """Return the text of a guide, read from a file for `@FILE`."""
    if kind not in _GUIDES:
        raise UsageError(
            f"--guide is `{kind}`, expected one of {', '.join(_GUIDES)}",
            remedy="for example: --guide json, --guide regex='[0-9]+', --guide json_schema=@FILE",
        )
    text = _content(value[1:]) if value.startswith("@") else value
    if kind == _ANY_JSON and text:
        raise UsageError(
            "--guide json takes no text: it allows any JSON",
            remedy="drop the text after `json`, or use --guide json_schema=...",
        )
    if kind != _ANY_JSON and not text.strip():
        raise UsageError(
            f"--guide {kind} has no text", remedy=f"write --guide {kind}=TEXT or =@FILE"
        )
    if kind == _JSON_SCHEMA:
        _refuse_other_than_json(text)
    return text


def _content(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # missing, or not UTF-8
        raise UsageError(
            f"--guide: {name} cannot be read: {error}", remedy="use a readable UTF-8 text file"
        ) from error


def _refuse_other_than_json(text: str) -> None:
    import json

    try:
        json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--guide json_schema is not JSON: {error}",
            remedy="correct it; @FILE reads a file",
        ) from error

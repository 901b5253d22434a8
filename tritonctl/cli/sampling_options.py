# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that ask a model: how to sample, to wait and to continue elsewhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.protocol.generation import SamplingParameters

_ANY_JSON, _JSON_SCHEMA = "json", "json_schema"
_GUIDES = (_ANY_JSON, _JSON_SCHEMA, "regex", "ebnf_grammar")

Stop = Annotated[list[str] | None, typer.Option(help="text that ends the answer; repeatable")]
IncludeStopWord = Annotated[
    bool, typer.Option("--include-stop-word", help="show the text that ended the answer")
]
EndId = Annotated[
    list[int] | None, typer.Option(help="token id that ends the answer, -1 for none; repeatable")
]
MinTokens = Annotated[int | None, typer.Option(help="fewest tokens before the answer may end")]
Echo = Annotated[
    bool, typer.Option("--echo", help="begin the answer with the prompt; it comes in one piece")
]
LogProbs = Annotated[
    bool, typer.Option("--log-probs", help="log probability of each token, with --json")
]
Priority = Annotated[int | None, typer.Option(help="priority in the server's queue, 1 goes first")]
QueueTimeout = Annotated[float | None, typer.Option(help="longest wait in that queue, seconds")]
Timeout = Annotated[float | None, typer.Option(help="seconds for the whole answer")]
ResumeOn = Annotated[
    list[str] | None, typer.Option(help="host:port that continues if the server dies; repeatable")
]
MaxResumes = Annotated[
    int | None,
    typer.Option(
        min=0, help="how often to continue elsewhere", show_default="once each; 30 on itself"
    ),
]


@dataclass(frozen=True)
class SamplingOptions:
    """Fields of SamplingParameters that every text-generation engine has."""

    max_tokens: Annotated[int | None, typer.Option(help="most tokens of the answer")] = None
    temperature: Annotated[float | None, typer.Option(help="0 is greedy")] = None
    top_k: Annotated[int | None, typer.Option(help="sample from the k likeliest tokens")] = None
    top_p: Annotated[
        float | None, typer.Option(help="sample from the tokens of this probability mass")
    ] = None
    repetition_penalty: Annotated[float | None, typer.Option(help="1 is none")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="0 is none")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="0 is none")] = None
    seed: Annotated[int | None, typer.Option(min=0, help="same seed, same text")] = None

    def parameters(self, of_some_engines: EngineSamplingOptions) -> SamplingParameters:
        """These and those together. Raises UsageError."""
        from tritonctl.protocol.generation import SamplingParameters

        fields = asdict(self)
        seed = fields.pop("seed")
        return SamplingParameters(**fields, random_seed=seed, **of_some_engines.fields())


@dataclass(frozen=True)
class EngineSamplingOptions:
    """Those that only some engines have."""

    lora: Annotated[str | None, typer.Option(help="LoRA adapter of the engine")] = None
    guide: Annotated[
        str | None,
        typer.Option(
            help="what the answer must match: json, json_schema=TEXT, regex=TEXT or "
            "ebnf_grammar=TEXT; @FILE for TEXT reads a file"
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """As SamplingParameters calls them. Raises UsageError for an unknown kind of guide."""
        kind, _, text = (self.guide or "").partition("=")
        if self.guide is not None:
            text = _guide_text(kind, text)
        return {
            "lora_name": self.lora,
            "guided_decoding_guide_type": kind or None,
            "guided_decoding_guide": text or None,
        }


def _guide_text(kind: str, given: str) -> str:
    """The text of a guide, read from its file for `@FILE`."""
    if kind not in _GUIDES:
        raise UsageError(
            f"--guide is `{kind}`, expected one of {', '.join(_GUIDES)}",
            remedy="for example: --guide json, --guide regex='[0-9]+', --guide json_schema=@FILE",
        )
    text = _content(given[1:]) if given.startswith("@") else given
    if kind == _ANY_JSON and text:
        raise UsageError(
            "--guide json takes no text: it allows any JSON",
            remedy="leave out what follows `json`, or use --guide json_schema=...",
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
            f"--guide: {name} cannot be read: {error}", remedy="give a readable UTF-8 text file"
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

# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that ask a model: how to sample, how to wait, where to go on."""

from __future__ import annotations

from typing import Annotated

import typer

MaxTokens = Annotated[int | None, typer.Option(help="longest answer")]
Temperature = Annotated[float | None, typer.Option(help="0: greedy")]
TopK = Annotated[int | None, typer.Option(help="only the k likeliest tokens")]
TopP = Annotated[float | None, typer.Option(help="only tokens of this probability")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="1: none")]
PresencePenalty = Annotated[float | None, typer.Option(help="0: none")]
FrequencyPenalty = Annotated[float | None, typer.Option(help="0: none")]
Seed = Annotated[int | None, typer.Option(min=0, help="same seed, same text")]
Stop = Annotated[list[str] | None, typer.Option(help="text that ends the answer; may be repeated")]
IncludeStopWord = Annotated[
    bool, typer.Option("--include-stop-word", help="show the text that ended it")
]
EndId = Annotated[
    list[int] | None, typer.Option(help="token id that ends it, -1: none; may be repeated")
]
MinTokens = Annotated[int | None, typer.Option(help="no end token before this many")]
Echo = Annotated[bool, typer.Option("--echo", help="begin with the prompt")]
LogProbs = Annotated[bool, typer.Option("--log-probs", help="of each token, under --json")]
Priority = Annotated[int | None, typer.Option(help="in the server's queue, 1: first")]
QueueTimeout = Annotated[float | None, typer.Option(help="seconds to wait there")]
Url = Annotated[str | None, typer.Option(help="host:port of gRPC [default: the project's server]")]
Timeout = Annotated[float | None, typer.Option(help="seconds for the whole answer")]
ResumeOn = Annotated[
    list[str] | None, typer.Option(help="host:port that goes on if the server dies; repeatable")
]
MaxResumes = Annotated[
    int | None, typer.Option(min=0, help="how often to go on elsewhere [default: once each]")
]

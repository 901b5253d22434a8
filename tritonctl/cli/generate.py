# SPDX-License-Identifier: Apache-2.0
"""`tritonctl generate`: a prompt in, text out as it comes, timings at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.console import Console
    from tritonctl.triton.generation import Chunk, Generation, Prompt, SamplingParameters


_LogProbs = Annotated[bool, typer.Option("--log-probs", help="of each token, under --json")]
_Url = Annotated[str | None, typer.Option(help="host:port of gRPC [default: the project's server]")]
_ResumeOn = Annotated[
    list[str] | None, typer.Option(help="host:port that goes on if the server dies; repeatable")
]
_MaxResumes = Annotated[
    int | None, typer.Option(min=0, help="how often to go on elsewhere [default: once each]")
]


def command(
    model: Annotated[str, typer.Argument(help="a model, such as speller")],
    prompt: Annotated[str, typer.Argument(help="the prompt; - reads standard input")],
    max_tokens: Annotated[int | None, typer.Option(help="longest answer")] = None,
    temperature: Annotated[float | None, typer.Option(help="0: greedy")] = None,
    top_k: Annotated[int | None, typer.Option(help="only the k likeliest tokens")] = None,
    top_p: Annotated[float | None, typer.Option(help="only tokens of this probability")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1: none")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="0: none")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="0: none")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="same seed, same text")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="text that ends the answer; may be repeated")
    ] = None,
    include_stop_word: Annotated[
        bool, typer.Option("--include-stop-word", help="show the text that ended it")
    ] = False,
    end_id: Annotated[
        list[int] | None, typer.Option(help="token id that ends it, -1: none; may be repeated")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="no end token before this many")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="begin with the prompt")] = False,
    log_probs: _LogProbs = False,
    url: _Url = None,
    resume_on: _ResumeOn = None,
    max_resumes: _MaxResumes = None,
    timeout: Annotated[float | None, typer.Option(help="seconds for the whole answer")] = None,
    project: options.ProjectOption = None,
    profile: options.ProfileOption = None,
    overrides: options.SetOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Stream a model's answer; TTFT, ITL and tokens/s follow on standard error."""
    from tritonctl.triton.generation import SamplingParameters

    console = options.console(as_json, quiet)
    sampling = SamplingParameters(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        random_seed=seed,
        min_tokens=min_tokens,
        end_id=tuple(end_id) if end_id else None,
        stop_words=tuple(stop) if stop else None,
        include_stop_word=include_stop_word or None,
        exclude_input_in_output=False if echo else None,
        return_log_probs=log_probs or None,
    )
    urls = [url or project_endpoint(project, profile, overrides), *(resume_on or ())]
    answer = stream_to(
        console, urls, model, _prompt_bytes(prompt), sampling, timeout, max_resumes=max_resumes
    )
    if as_json:
        console.result(asdict(answer), "")
    console.note(timing_line(answer))


def project_endpoint(
    project: options.ProjectOption, profile: str | None, overrides: list[str] | None
) -> str:
    """host:port of the project's running server. Raises ServerError when there is none."""
    from tritonctl.triton.server import running_server

    return running_server(options.open_project(project, profile, overrides)).grpc_url


def _prompt_bytes(prompt: str) -> bytes:
    """The prompt as it was typed or piped; whether it is UTF-8 is for the server to judge."""
    if prompt == "-":
        return sys.stdin.buffer.read().removesuffix(b"\n")
    return os.fsencode(prompt)


def stream_to(
    console: Console,
    urls: Sequence[str],
    model: str,
    prompt: Prompt,
    sampling: SamplingParameters,
    timeout: float | None = None,
    *,
    max_resumes: int | None = None,
) -> Generation:
    """Stream an answer to standard output (not under --json) and return it whole.

    It comes from the first of `urls`; the others go on with it if that one dies.
    """
    from tritonctl.triton.client import TritonClient
    from tritonctl.triton.generation import Generation

    chunks: list[Chunk] = []
    with TritonClient(urls[0], resume_on=urls[1:], max_resumes=max_resumes) as client:
        sent_ns = time.monotonic_ns()
        for chunk in client.stream(model, prompt, sampling, timeout=timeout):
            chunks.append(chunk)
            if not console.as_json:
                console.text(chunk.text)
    if not console.as_json:
        console.text("\n")
    return Generation.of(sent_ns, chunks)


def timing_line(answer: Generation) -> str:
    """One line of what the user would ask next."""
    timing = answer.timing
    ttft = f"{timing.ttft_ms:.1f} ms" if timing.ttft_ms is not None else "none"
    itl = f"{timing.itl_ms:.2f} ms" if timing.itl_ms is not None else "none"
    speed = f"{timing.tokens_per_second:.0f}" if timing.tokens_per_second else "0"
    broken = f" · went on elsewhere {answer.resumes}x" if answer.resumes else ""
    return (
        f"{answer.num_input_tokens} tokens in, {answer.num_output_tokens} out "
        f"({answer.finish_reason}) · TTFT {ttft} · ITL {itl} · {speed} tokens/s{broken}"
    )

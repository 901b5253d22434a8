# SPDX-License-Identifier: Apache-2.0
"""`tritonctl generate`: a prompt in, text out as it comes, timings at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli import sampling_options as asked
from tritonctl.cli.server_options import ServerOptions

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.protocol.generation import Chunk, Generation


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as speller")],
    prompt: Annotated[str, typer.Argument(help="the prompt; - reads standard input")],
    sampling: asked.SamplingOptions,
    stop: asked.Stop = None,
    include_stop_word: asked.IncludeStopWord = False,
    end_id: asked.EndId = None,
    min_tokens: asked.MinTokens = None,
    echo: asked.Echo = False,
    log_probs: asked.LogProbs = False,
    priority: asked.Priority = None,
    queue_timeout: asked.QueueTimeout = None,
    of_some_engines: asked.EngineSamplingOptions,
    server: ServerOptions,
    timeout: asked.Timeout = None,
    resume_on: asked.ResumeOn = None,
    max_resumes: asked.MaxResumes = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Stream a model's answer; TTFT, ITL and tokens/s follow on standard error."""
    from tritonctl.protocol.client import TritonClient
    from tritonctl.protocol.generation import Queueing

    parameters = replace(
        sampling.parameters(of_some_engines),
        min_tokens=min_tokens,
        end_id=tuple(end_id) if end_id else None,
        stop_words=tuple(stop) if stop else None,
        include_stop_word=include_stop_word or None,
        exclude_input_in_output=False if echo else None,
        return_log_probs=log_probs or None,
    )
    console = voice.console()
    with (
        server.of_model(project, model) as at,
        TritonClient(
            at.url,
            tls=at.tls,
            api_key=at.api_key,
            resume_on=resume_on or (),
            max_resumes=max_resumes,
        ) as client,
    ):
        stream = client.stream(
            model,
            _prompt_bytes(prompt),
            parameters,
            timeout=timeout,
            queueing=Queueing(priority, queue_timeout),
        )
        finish(console, show(console, stream))


def finish(console: Console, answer: Generation) -> None:
    """Print the answer's record (with --json) and its timing on standard error."""
    if console.as_json:
        console.result(asdict(answer), "")
    console.note(timing_line(answer))


def _prompt_bytes(prompt: str) -> bytes:
    """The prompt as typed or piped; the server judges whether it is UTF-8."""
    if prompt == "-":
        return sys.stdin.buffer.read().removesuffix(b"\n")
    return os.fsencode(prompt)


def show(console: Console, stream: Iterable[Chunk]) -> Generation:
    """Write a stream to standard output as it comes (not under --json); return it whole."""
    from tritonctl.protocol.generation import Generation

    chunks: list[Chunk] = []
    sent_ns = time.monotonic_ns()
    for chunk in stream:
        chunks.append(chunk)
        if not console.as_json:
            console.text(chunk.text)
    if not console.as_json:
        console.text("\n")
    return Generation.of(sent_ns, chunks)


def timing_line(answer: Generation) -> str:
    """Token counts and latencies in one line."""
    timing = answer.timing
    ttft = f"{timing.ttft_ms:.1f} ms" if timing.ttft_ms is not None else "none"
    itl = f"{timing.itl_ms:.2f} ms" if timing.itl_ms is not None else "none"
    speed = f"{timing.tokens_per_second:.0f}" if timing.tokens_per_second else "0"
    broken = f" · continued elsewhere {answer.resumes}x" if answer.resumes else ""
    return (
        f"{answer.num_input_tokens} tokens in, {answer.num_output_tokens} out "
        f"({answer.finish_reason}) · TTFT {ttft} · ITL {itl} · {speed} tokens/s{broken}"
    )

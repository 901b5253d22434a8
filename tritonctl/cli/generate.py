# SPDX-License-Identifier: Apache-2.0
"""`tritonctl generate`: stream the answer to a prompt, with timings at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options, sampling_options
from tritonctl.cli.server_options import ServerOptions

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.protocol.generation import Chunk, Generation


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as speller")],
    prompt: Annotated[str, typer.Argument(help="the prompt; - reads standard input")],
    sampling: sampling_options.SamplingOptions,
    stop: sampling_options.Stop = None,
    include_stop_word: sampling_options.IncludeStopWord = False,
    end_id: sampling_options.EndId = None,
    echo: sampling_options.Echo = False,
    log_probs: sampling_options.LogProbs = False,
    priority: sampling_options.Priority = None,
    queue_timeout: sampling_options.QueueTimeout = None,
    engine_options: sampling_options.EngineSamplingOptions,
    server: ServerOptions,
    timeout: sampling_options.Timeout = None,
    resume_on: sampling_options.ResumeOn = None,
    max_resumes: sampling_options.MaxResumes = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Stream a model's answer; print TTFT, ITL and tokens/s on standard error."""
    from tritonctl.protocol.client import TritonClient
    from tritonctl.protocol.generation import Queueing

    parameters = replace(
        sampling.parameters(engine_options),
        end_id=tuple(end_id) if end_id else None,
        stop_words=tuple(stop) if stop else None,
        include_stop_word=include_stop_word or None,
        exclude_input_in_output=False if echo else None,
        return_log_probs=log_probs or None,
    )
    console = output_options.console()
    with (
        server.open_model_endpoint(project, model) as endpoint,
        TritonClient(
            endpoint.url,
            tls=endpoint.tls,
            api_key=endpoint.api_key,
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
        print_summary(console, print_stream(console, stream))


def print_summary(console: Console, answer: Generation) -> None:
    """Print the answer's record (with --json) and its timing on standard error."""
    if console.as_json:
        console.result(asdict(answer), "")
    console.note(timing_line(answer))


def _prompt_bytes(prompt: str) -> bytes:
    """Return the prompt as typed or piped; the server checks the UTF-8."""
    if prompt == "-":
        return sys.stdin.buffer.read().removesuffix(b"\n")
    return os.fsencode(prompt)


def print_stream(console: Console, stream: Iterable[Chunk]) -> Generation:
    """Write a stream to standard output as it arrives (not with --json); return the answer."""
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
    """Return token counts and latencies in one line."""
    timing = answer.timing
    ttft = f"{timing.ttft_ms:.1f} ms" if timing.ttft_ms is not None else "none"
    itl = f"{timing.itl_ms:.2f} ms" if timing.itl_ms is not None else "none"
    speed = f"{timing.tokens_per_second:.0f}" if timing.tokens_per_second else "0"
    broken = f" · continued elsewhere {answer.resumes}x" if answer.resumes else ""
    counts = f"{answer.num_input_tokens} tokens in, {answer.num_output_tokens} out"
    if not answer.num_input_tokens:  # a model of another maker, which may not count tokens
        counts = f"{answer.num_output_tokens} tokens or responses out"
    reason = f" ({answer.finish_reason})" if answer.finish_reason else ""
    return f"{counts}{reason} · TTFT {ttft} · ITL {itl} · {speed} tokens/s{broken}"

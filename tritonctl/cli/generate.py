# SPDX-License-Identifier: Apache-2.0
"""`tritonctl generate`: a prompt in, text out as it comes, timings at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.cli import sampling_options as asked

if TYPE_CHECKING:
    from tritonctl.console.voice import Console
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.protocol.client import TritonClient
    from tritonctl.protocol.generation import Chunk, Generation


def command(
    model: Annotated[str, typer.Argument(help="a model, such as speller")],
    prompt: Annotated[str, typer.Argument(help="the prompt; - reads standard input")],
    max_tokens: asked.MaxTokens = None,
    temperature: asked.Temperature = None,
    top_k: asked.TopK = None,
    top_p: asked.TopP = None,
    repetition_penalty: asked.RepetitionPenalty = None,
    presence_penalty: asked.PresencePenalty = None,
    frequency_penalty: asked.FrequencyPenalty = None,
    seed: asked.Seed = None,
    stop: asked.Stop = None,
    include_stop_word: asked.IncludeStopWord = False,
    end_id: asked.EndId = None,
    min_tokens: asked.MinTokens = None,
    echo: asked.Echo = False,
    log_probs: asked.LogProbs = False,
    priority: asked.Priority = None,
    queue_timeout: asked.QueueTimeout = None,
    lora: asked.Lora = None,
    guide: asked.Guide = None,
    url: asked.Url = None,
    ca: options.CaOption = None,
    certificate: options.CertificateOption = None,
    key: options.KeyOption = None,
    api_key_file: options.ApiKeyOption = None,
    api_key_in_clear: options.ApiKeyInClearOption = False,
    timeout: asked.Timeout = None,
    resume_on: asked.ResumeOn = None,
    max_resumes: asked.MaxResumes = None,
    project: options.ProjectOption = None,
    profile: options.ProfileOption = None,
    overrides: options.SetOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Stream a model's answer; TTFT, ITL and tokens/s follow on standard error."""
    from tritonctl.protocol.generation import Queueing, SamplingParameters

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
        **asked.of_engines(lora, guide),
    )
    named = options.named_server(url, ca, certificate, key, api_key_file, api_key_in_clear)
    how: dict[str, Any] = {"timeout": timeout, "queueing": Queueing(priority, queue_timeout)}
    with _client(endpoint(named, project, profile, overrides), resume_on, max_resumes) as client:
        _answer(client.stream(model, _prompt_bytes(prompt), sampling, **how), as_json, quiet)


def _answer(stream: Iterable[Chunk], as_json: bool, quiet: bool) -> None:
    console = options.console(as_json, quiet)
    tell(console, show(console, stream))


def _client(at: Endpoint, resume_on: list[str] | None, max_resumes: int | None) -> TritonClient:
    from tritonctl.protocol.client import TritonClient

    return TritonClient(
        at.url, tls=at.tls, api_key=at.api_key, resume_on=resume_on or (), max_resumes=max_resumes
    )


def endpoint(
    named: Endpoint | None,
    project: options.ProjectOption,
    profile: str | None,
    overrides: list[str] | None,
) -> Endpoint:
    """The one named, else the project's running server. Raises ServerError when there is none."""
    from tritonctl.server.lifecycle import running_server

    if named is not None:
        return named
    return running_server(options.open_project(project, profile, overrides)).endpoint


def tell(console: Console, answer: Generation) -> None:
    """What follows an answer: its record under --json, its timing on standard error."""
    if console.as_json:
        console.result(asdict(answer), "")
    console.note(timing_line(answer))


def _prompt_bytes(prompt: str) -> bytes:
    """The prompt as it was typed or piped; whether it is UTF-8 is for the server to judge."""
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

# SPDX-License-Identifier: Apache-2.0
"""Send the same prompts to two running versions: twice to the first, once to the second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import RequestRejectedError, TritonctlError, UsageError
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.delivery import Delivery
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.protocol.row_calls import describe_task
from tritonctl.protocol.tasks import ServedTask
from tritonctl.rollout.compare import ComparedQuestion
from tritonctl.rollout.differences import (
    Answer,
    LabelsAnswer,
    ScoresAnswer,
    TextAnswer,
    VectorAnswer,
)
from tritonctl.rollout.measures import TimedAnswer, answer_times

MAX_PROMPTS = 10_000
_MAX_FILE_BYTES = 64 << 20
_TEXT_FIELDS = ("text_input", "text")
_TASKS = ("text_generation", "embedding", "rerank", "classification", "token_classification")


@dataclass(frozen=True)
class ReplayPrompt:
    """A text, or a query with documents."""

    text: str
    documents: tuple[str, ...] = ()
    model: str = ""  # the model of a recording, "" if the file names none


@dataclass(frozen=True)
class ReplaySettings:
    """The settings of a replay."""

    max_tokens: int = 64  # of a generated text
    in_flight: int = 4  # concurrent prompts
    seconds: float = 60.0  # timeout of each request


def read_prompts(file: Path, task: str, model: str = "") -> list[ReplayPrompt]:
    """Read one prompt per line: plain text, or JSON if the file's suffix is .jsonl.

    JSON objects have text_input or text; for rerank query and documents. Those of a recording name
    their `model`; prompts of different models are skipped. Raises UsageError.
    """
    try:
        size = file.stat().st_size
        content = file.read_bytes() if size <= _MAX_FILE_BYTES else b""
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", remedy="name a file of prompts"
        ) from error
    if size > _MAX_FILE_BYTES:
        raise UsageError(
            f"{file} has {size >> 20} MiB, the limit is {_MAX_FILE_BYTES >> 20} MiB",
            remedy="use a part of it: head -n 1000",
        )
    lines = [line for line in content.split(b"\n") if line.strip()]
    if not 0 < len(lines) <= MAX_PROMPTS:
        raise UsageError(
            f"{file} has {len(lines)} lines, expected 1 to {MAX_PROMPTS}",
            remedy="use a few hundred prompts of your users",
        )
    parse_line = _json_prompt if file.suffix == ".jsonl" else _plain_prompt
    parsed_prompts = [
        parse_line(line, task, f"{file}:{number}") for number, line in enumerate(lines, start=1)
    ]
    model_prompts = [
        prompt for prompt in parsed_prompts if prompt and (not model or prompt.model in ("", model))
    ]
    if not model_prompts:
        raise UsageError(f"{file} has no prompts for {model}", remedy="name another model: --model")
    return model_prompts


def _plain_prompt(line: bytes, task: str, location: str) -> ReplayPrompt:
    if task == "rerank":
        raise UsageError(
            f"{location}: a rerank needs a query and documents",
            remedy='name a .jsonl file with {"query": "…", "documents": ["…"]} on each line',
        )
    return ReplayPrompt(_decoded(line.removesuffix(b"\r"), location))


def _json_prompt(line: bytes, task: str, location: str) -> ReplayPrompt | None:
    """Parse a JSON line; None for a recorded request without a single text, such as a chat."""
    try:
        value = json.loads(_decoded(line, location))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{location}: invalid JSON: {error}", remedy="correct the line") from error
    fields = ("query",) if task == "rerank" else _TEXT_FIELDS
    record = value if isinstance(value, dict) else {}
    text = next((record[name] for name in fields if isinstance(record.get(name), str)), None)
    documents = record.get("documents", [])
    documents_are_strings = isinstance(documents, list) and all(
        isinstance(document, str) for document in documents
    )
    model = record.get("model")
    model = model if isinstance(model, str) else ""
    if text is None and model:
        return None
    if text is None or not documents_are_strings or (task == "rerank" and not documents):
        required_fields = "query and documents" if task == "rerank" else " or ".join(fields)
        raise UsageError(
            f"{location}: expected an object with {required_fields}", remedy="correct the line"
        )
    return ReplayPrompt(text, tuple(documents), model)


def _decoded(line: bytes, location: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{location}: not UTF-8: {error.reason}", remedy="correct the line"
        ) from error


def require_same_task(a: Endpoint, b: Endpoint, model: str) -> ServedTask:
    """Return the task that both servers have under this model name.

    Raises UsageError if their tasks differ or are not comparable.
    """
    tasks = []
    for endpoint in (a, b):
        with Connection(endpoint) as connection:
            tasks.append(describe_task(connection, model))
    first, second = tasks
    if first.task != second.task or first.inputs != second.inputs:
        raise UsageError(
            f"{a.url} and {b.url} do not serve the same task as {model}: {first.task.name}, "
            f"{second.task.name}",
            remedy="name two versions of one model: --model",
        )
    if first.task.name not in _TASKS:
        raise UsageError(
            f"answers of {first.task.name} cannot be compared",
            remedy=f"name a model of one of {', '.join(_TASKS)}",
        )
    return first


def ask_both_servers(
    endpoints: tuple[Endpoint, Endpoint],
    task: ServedTask,
    prompts: Sequence[ReplayPrompt],
    settings: ReplaySettings,
    on_progress: Callable[[int], None],
) -> tuple[list[ComparedQuestion], list[str]]:
    """Send each prompt to the first server, the second, and the first again; return the failures.

    Prompts run concurrently, so that batches vary as in production: that is the noise.
    `on_progress` gets the number of finished prompts. Raises ServerError if a server does not
    answer.
    """
    with (
        TritonClient(endpoints[0].url, tls=endpoints[0].tls, api_key=endpoints[0].api_key) as a,
        TritonClient(endpoints[1].url, tls=endpoints[1].tls, api_key=endpoints[1].api_key) as b,
        ThreadPoolExecutor(settings.in_flight) as pool,
    ):

        def ask_prompt(prompt: ReplayPrompt) -> ComparedQuestion | str:
            try:
                first = ask_server(a, task, prompt, settings)
                candidate = ask_server(b, task, prompt, settings)
                second = ask_server(a, task, prompt, settings)
            except RequestRejectedError as error:
                return error.problem
            times = answer_times(first, second, candidate)
            return ComparedQuestion(
                prompt.text, first.answer, second.answer, candidate.answer, times
            )

        calls = [pool.submit(ask_prompt, question) for question in prompts]
        compared_questions: list[ComparedQuestion] = []
        failed: list[str] = []
        try:
            for number, call in enumerate(calls, start=1):
                outcome = call.result()
                if isinstance(outcome, ComparedQuestion):
                    compared_questions.append(outcome)
                else:
                    failed.append(f"question {number}: {outcome}")
                on_progress(number)
        except (TritonctlError, KeyboardInterrupt):
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return compared_questions, failed


def ask_server(
    client: TritonClient, task: ServedTask, prompt: ReplayPrompt, settings: ReplaySettings
) -> TimedAnswer:
    """Send one prompt to a server, with greedy decoding. Raises the client's errors."""
    started_at = time.monotonic()
    answer, first_ms = _task_answer(client, task, prompt, settings)
    return TimedAnswer(answer, first_ms, 1000 * (time.monotonic() - started_at))


def _task_answer(
    client: TritonClient, task: ServedTask, prompt: ReplayPrompt, settings: ReplaySettings
) -> tuple[Answer, float | None]:
    """The answer, with the milliseconds until its first token if it has tokens."""
    model, delivery = task.model, Delivery(timeout=settings.seconds)
    match task.task.name:
        case "text_generation":
            made = client.generate(
                model,
                prompt.text,
                SamplingParameters(
                    max_tokens=settings.max_tokens,
                    return_log_probs=True if "return_log_probs" in task.inputs else None,
                ),
                timeout=settings.seconds,
            )
            return TextAnswer(made.text, made.token_ids, made.log_probs), made.timing.ttft_ms
        case "embedding":
            [embedded] = client.embed(model, [prompt.text], delivery=delivery)
            return VectorAnswer(tuple(embedded.vector.reshape(-1).tolist())), None
        case "rerank":
            ranked = client.rerank(model, prompt.text, list(prompt.documents), delivery=delivery)
            scores = [item.score for item in sorted(ranked, key=lambda item: item.index)]
            return ScoresAnswer(tuple(scores)), None
        case "token_classification":
            [token_result] = client.classify_tokens(model, [prompt.text], delivery=delivery)
            names = [f"{item.label} {item.start}-{item.end}" for item in token_result.entities]
            return LabelsAnswer((", ".join(names),), (1.0,)), None
        case _:
            [labels] = client.classify(model, [prompt.text], delivery=delivery)
            return LabelsAnswer(tuple(labels.labels), tuple(labels.scores)), None

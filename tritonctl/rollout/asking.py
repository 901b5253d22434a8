# SPDX-License-Identifier: Apache-2.0
"""Asks two running versions the same questions: the first twice, the second once in between."""

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
from tritonctl.protocol.row_calls import served_task
from tritonctl.protocol.tasks import ServedTask
from tritonctl.rollout.compare import Asked
from tritonctl.rollout.differences import Answer, Labels, Order, Text, Vector
from tritonctl.rollout.measures import Timed, times_of

MOST_QUESTIONS = 10_000
_MOST_BYTES = 64 << 20
_TEXT_FIELDS = ("text_input", "text")
_TASKS = ("text_generation", "embedding", "rerank", "classification", "token_classification")


@dataclass(frozen=True)
class Question:
    """A text, or a query with documents."""

    text: str
    documents: tuple[str, ...] = ()
    model: str = ""  # that was asked, where the file says so


@dataclass(frozen=True)
class Settings:
    """max_tokens: of a generated text. in_flight: questions at once. seconds: for each request."""

    max_tokens: int = 64
    in_flight: int = 4
    seconds: float = 60.0


def questions(file: Path, task: str, model: str = "") -> list[Question]:
    """A question on each line: plain text, or JSON in a file whose name ends with .jsonl.

    JSON objects have text_input or text; of a rerank query and documents. Those of a recording name
    their `model`, and of other models are left out. Raises UsageError.
    """
    try:
        size = file.stat().st_size
        content = file.read_bytes() if size <= _MOST_BYTES else b""
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", remedy="name a file of prompts"
        ) from error
    if size > _MOST_BYTES:
        raise UsageError(
            f"{file} has {size >> 20} MiB, at most {_MOST_BYTES >> 20} are compared",
            remedy="take a part of it: head -n 1000",
        )
    lines = [line for line in content.split(b"\n") if line.strip()]
    if not 0 < len(lines) <= MOST_QUESTIONS:
        raise UsageError(
            f"{file} has {len(lines)} lines, expected 1 to {MOST_QUESTIONS}",
            remedy="a few hundred questions of your users tell most",
        )
    read = _objects if file.suffix == ".jsonl" else _plain
    found = [read(line, task, f"{file}:{number}") for number, line in enumerate(lines, start=1)]
    ours = [one for one in found if one and (not model or one.model in ("", model))]
    if not ours:
        raise UsageError(
            f"{file} has no questions to {model}", remedy="name another model: --model"
        )
    return ours


def _plain(line: bytes, task: str, place: str) -> Question:
    if task == "rerank":
        raise UsageError(
            f"{place}: a rerank has a query and documents",
            remedy='name a .jsonl file with {"query": "…", "documents": ["…"]} on each line',
        )
    return Question(_decoded(line.removesuffix(b"\r"), place))


def _objects(line: bytes, task: str, place: str) -> Question | None:
    """None for what a recording has that is no single text, such as a chat."""
    try:
        given = json.loads(_decoded(line, place))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: no JSON: {error}", remedy="correct the line") from error
    fields = ("query",) if task == "rerank" else _TEXT_FIELDS
    record = given if isinstance(given, dict) else {}
    text = next((record[name] for name in fields if isinstance(record.get(name), str)), None)
    documents = record.get("documents", [])
    strings = isinstance(documents, list) and all(isinstance(one, str) for one in documents)
    model = record.get("model")
    model = model if isinstance(model, str) else ""
    if text is None and model:
        return None
    if text is None or not strings or (task == "rerank" and not documents):
        wanted = "query and documents" if task == "rerank" else " or ".join(fields)
        raise UsageError(f"{place}: expected an object with {wanted}", remedy="correct the line")
    return Question(text, tuple(documents), model)


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: no UTF-8: {error.reason}", remedy="correct the line") from error


def served_alike(a: Endpoint, b: Endpoint, model: str) -> ServedTask:
    """What both serve under this name. Raises UsageError where they serve different things."""
    found = []
    for endpoint in (a, b):
        with Connection(endpoint) as connection:
            found.append(served_task(connection, model))
    first, second = found
    if first.task != second.task or first.inputs != second.inputs:
        raise UsageError(
            f"{a.url} and {b.url} do not serve the same task as {model}: {first.task.name}, "
            f"{second.task.name}",
            remedy="name two versions of one model: --model",
        )
    if first.task.name not in _TASKS:
        raise UsageError(
            f"answers of {first.task.name} are not compared",
            remedy=f"name a model of one of {', '.join(_TASKS)}",
        )
    return first


def ask_both(
    endpoints: tuple[Endpoint, Endpoint],
    served: ServedTask,
    asked: Sequence[Question],
    settings: Settings,
    show: Callable[[int], None],
) -> tuple[list[Asked], list[str]]:
    """Each question of the first, the second, the first again; and what has failed, in words.

    Questions run side by side, so that batches differ as they do in service: that is the noise.
    `show` hears how many are done. Raises ServerError when a server does not answer.
    """
    with (
        TritonClient(endpoints[0].url, tls=endpoints[0].tls, api_key=endpoints[0].api_key) as a,
        TritonClient(endpoints[1].url, tls=endpoints[1].tls, api_key=endpoints[1].api_key) as b,
        ThreadPoolExecutor(settings.in_flight) as pool,
    ):

        def one(question: Question) -> Asked | str:
            try:
                first = answer(a, served, question, settings)
                candidate = answer(b, served, question, settings)
                second = answer(a, served, question, settings)
            except RequestRejectedError as error:
                return error.problem
            times = times_of(first, second, candidate)
            return Asked(question.text, first.answer, second.answer, candidate.answer, times)

        calls = [pool.submit(one, question) for question in asked]
        found: list[Asked] = []
        failed: list[str] = []
        try:
            for number, call in enumerate(calls, start=1):
                outcome = call.result()
                if isinstance(outcome, Asked):
                    found.append(outcome)
                else:
                    failed.append(f"question {number}: {outcome}")
                show(number)
        except (TritonctlError, KeyboardInterrupt):
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found, failed


def answer(
    client: TritonClient, served: ServedTask, question: Question, settings: Settings
) -> Timed:
    """What a version answers; texts greedily. Raises what the client raises."""
    began = time.monotonic()
    found, first_ms = _answer(client, served, question, settings)
    return Timed(found, first_ms, 1000 * (time.monotonic() - began))


def _answer(
    client: TritonClient, served: ServedTask, question: Question, settings: Settings
) -> tuple[Answer, float | None]:
    """With the milliseconds until its first token, if it has any."""
    model, delivery = served.model, Delivery(timeout=settings.seconds)
    match served.task.name:
        case "text_generation":
            made = client.generate(
                model,
                question.text,
                SamplingParameters(
                    max_tokens=settings.max_tokens,
                    return_log_probs=True if "return_log_probs" in served.inputs else None,
                ),
                timeout=settings.seconds,
            )
            return Text(made.text, made.token_ids, made.log_probs), made.timing.ttft_ms
        case "embedding":
            [embedded] = client.embed(model, [question.text], delivery=delivery)
            return Vector(tuple(embedded.vector.reshape(-1).tolist())), None
        case "rerank":
            ranked = client.rerank(
                model, question.text, list(question.documents), delivery=delivery
            )
            scores = [one.score for one in sorted(ranked, key=lambda one: one.index)]
            return Order(tuple(scores)), None
        case "token_classification":
            [found] = client.classify_tokens(model, [question.text], delivery=delivery)
            names = [f"{one.label} {one.start}-{one.end}" for one in found.entities]
            return Labels((", ".join(names),), (1.0,)), None
        case _:
            [labels] = client.classify(model, [question.text], delivery=delivery)
            return Labels(tuple(labels.labels), tuple(labels.scores)), None

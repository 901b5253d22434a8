# SPDX-License-Identifier: Apache-2.0
"""Checks of decoupled models of any meaning: one final response, outputs, the same order again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tritonctl.server.smoke.answers import failure_of, faults, nan_faults
from tritonctl.server.smoke.outcomes import Outcome
from tritonctl.server.smoke.recording_client import Answer
from tritonctl.server.smoke.subject import Request, Subject, first_answer


def stream_checks(subject: Subject) -> Iterator[Outcome]:
    """Whether a stream has one end and the declared outputs, and keeps its order when repeated."""
    request, answer = first_answer(subject)
    yield from ending(subject, request, answer)
    if answer.error:
        return
    if not answer.responses and not answer.empty:
        yield subject.skipped("outputs", "the stream ended without a response")
        return
    wrong = faults(subject.config, answer.responses, batch=1)
    if answer.empty:  # Triton leaves out what is not declared
        wrong.append(f"{answer.empty} responses without a declared output")
    yield subject.judged("outputs", wrong, "names, types and shapes as declared", request)
    if not wrong:
        yield subject.judged("numbers", nan_faults(answer.responses), "no NaN", request)
    yield _again(subject, request, answer)


def ending(subject: Subject, request: Request, answer: Answer) -> Iterator[Outcome]:
    """Whether an answer comes, with exactly one final response, the last one."""
    count = len(answer.responses)
    if answer.error and not answer.timed_out:
        yield subject.failed("answers", answer.error, request)
        return
    if count or not answer.timed_out:
        yield subject.passed("answers", f"{count} response{'s' if count != 1 else ''}")
    else:
        yield subject.failed("answers", failure_of(answer, subject.client.seconds), request)
    wrong = []
    if answer.timed_out:
        wrong.append(f"{answer.finals or 'no'} final response, and the stream did not end")
    elif answer.finals != 1:
        wrong.append(f"{answer.finals or 'no'} final responses")
    if answer.late:
        wrong.append(f"{answer.late} responses after the final one")
    yield subject.judged("one final", wrong, "the last response, and no other", request)


def _again(subject: Subject, request: Request, first: Answer) -> Outcome:
    """Whether a second answer has the responses of the first in the same order."""
    if len(first.responses) < 2:  # noqa: PLR2004 - one alone has no order
        return subject.skipped("order", "one response has no order")
    [second] = subject.client.ask(request.message, stream=True)
    before, after = ([_content(r) for r in answer.responses] for answer in (first, second))
    if before == after:
        return subject.passed("order", f"{len(before)} responses, the same when asked again")
    if Counter(before) == Counter(after):
        return subject.failed(
            "order", "the same responses in another order when asked again", request
        )
    return subject.skipped("order", "it answers differently when asked again")


def _content(response: Any) -> tuple[Any, ...]:
    tensors = [(each.name, each.datatype, tuple(each.shape)) for each in response.outputs]
    return (*tensors, *response.raw_output_contents)

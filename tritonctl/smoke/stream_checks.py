# SPDX-License-Identifier: Apache-2.0
"""Checks of decoupled models whose tensors mean nothing to us: one end, outputs, the same again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tritonctl.smoke.answers import faults, how_it_failed, not_numbers
from tritonctl.smoke.outcomes import Outcome
from tritonctl.smoke.recording_client import Answer
from tritonctl.smoke.subject import Request, Subject, first_answer


def stream_checks(subject: Subject) -> Iterator[Outcome]:
    """Whether a stream ends once, is as declared, and comes in the same order again."""
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
        yield subject.judged("numbers", not_numbers(answer.responses), "no NaN", request)
    yield _again(subject, request, answer)


def ending(subject: Subject, request: Request, answer: Answer) -> Iterator[Outcome]:
    """Whether it answers, and with exactly one final response, the last one."""
    count = len(answer.responses)
    if answer.error and not answer.timed_out:
        yield subject.failed("answers", answer.error, request)
        return
    if count or not answer.timed_out:
        yield subject.passed("answers", f"{count} response{'s' if count != 1 else ''}")
    else:
        yield subject.failed("answers", how_it_failed(answer, subject.client.seconds), request)
    wrong = []
    if answer.timed_out:
        wrong.append(f"{answer.finals or 'no'} final response, and the stream did not end")
    elif answer.finals != 1:
        wrong.append(f"{answer.finals or 'no'} final responses")
    if answer.late:
        wrong.append(f"{answer.late} responses behind the final one")
    yield subject.judged("one final", wrong, "the last response, and no other", request)


def _again(subject: Subject, request: Request, first: Answer) -> Outcome:
    """The same request twice: the same responses in another order are an order that was lost."""
    if len(first.responses) < 2:  # noqa: PLR2004 - one alone has no order
        return subject.skipped("order", "one response has no order")
    [second] = subject.client.ask(request.message, stream=True)
    one, other = ([_content(r) for r in answer.responses] for answer in (first, second))
    if one == other:
        return subject.passed("order", f"{len(one)} responses, the same when asked again")
    if Counter(one) == Counter(other):
        return subject.failed(
            "order", "the same responses in another order when asked again", request
        )
    return subject.skipped("order", "it answers otherwise when asked again, so nothing tells")


def _content(response: Any) -> tuple[Any, ...]:
    names = [(one.name, one.datatype, tuple(one.shape)) for one in response.outputs]
    return (*names, *response.raw_output_contents)

# SPDX-License-Identifier: Apache-2.0
"""Checks of any decoupled model: one final response, declared outputs, repeatable order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tritonctl.smoke.answer_checks import answer_failure, nan_faults, output_faults
from tritonctl.smoke.model_under_test import ModelUnderTest, SmokeRequest, first_answer
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.output_checks import each_output_check
from tritonctl.smoke.recording_client import RecordedAnswer


def stream_checks(subject: ModelUnderTest) -> Iterator[SmokeOutcome]:
    """Check that a stream has one end, the declared outputs, and the same order when repeated."""
    request, answer = first_answer(subject)
    yield from final_response_checks(subject, request, answer)
    if answer.error:
        return
    if not answer.responses and not answer.empty:
        yield subject.skip_outcome("outputs", "the stream ended without a response")
        return
    wrong = output_faults(subject.config, answer.responses, batch=1)
    if answer.empty:  # Triton drops undeclared outputs
        wrong.append(f"{answer.empty} responses without a declared output")
    yield subject.verdict_outcome("outputs", wrong, "names, types and shapes as declared", request)
    if not wrong:
        yield subject.verdict_outcome("numbers", nan_faults(answer.responses), "no NaN", request)
        if answer.finals == 1:  # else each further request waits for its end
            yield each_output_check(subject)
    yield _order_check(subject, request, answer)


def final_response_checks(
    subject: ModelUnderTest, request: SmokeRequest, answer: RecordedAnswer
) -> Iterator[SmokeOutcome]:
    """Check that an answer arrives, with exactly one final response at its end."""
    count = len(answer.responses)
    if answer.error and not answer.timed_out:
        yield subject.fail_outcome("answers", answer.error, request)
        return
    if count or not answer.timed_out:
        yield subject.pass_outcome("answers", f"{count} response{'s' if count != 1 else ''}")
    else:
        yield subject.fail_outcome(
            "answers", answer_failure(answer, subject.client.seconds), request
        )
    wrong = []
    if answer.timed_out:
        wrong.append(f"{answer.finals or 'no'} final response, and the stream did not end")
    elif answer.finals != 1:
        wrong.append(f"{answer.finals or 'no'} final responses")
    if answer.late:
        wrong.append(f"{answer.late} responses after the final one")
    yield subject.verdict_outcome("one final", wrong, "the last response, and no other", request)


def _order_check(
    subject: ModelUnderTest, request: SmokeRequest, first: RecordedAnswer
) -> SmokeOutcome:
    """Check that a second answer has the first answer's responses in the same order."""
    if len(first.responses) < 2:  # noqa: PLR2004 - one response has no order
        return subject.skip_outcome("order", "one response has no order")
    [second] = subject.client.send_all(request.message, stream=True)
    first_contents, second_contents = (
        [_content(r) for r in answer.responses] for answer in (first, second)
    )
    if first_contents == second_contents:
        return subject.pass_outcome(
            "order", f"{len(first_contents)} responses, the same when repeated"
        )
    if Counter(first_contents) == Counter(second_contents):
        return subject.fail_outcome(
            "order", "the same responses in another order when repeated", request
        )
    return subject.skip_outcome("order", "it answers differently when repeated")


def _content(response: Any) -> tuple[Any, ...]:
    tensors = [(each.name, each.datatype, tuple(each.shape)) for each in response.outputs]
    return (*tensors, *response.raw_output_contents)

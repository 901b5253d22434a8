# SPDX-License-Identifier: Apache-2.0
"""Checks of models with one response: one request, each output, a batch, a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.smoke.answer_checks import answer_failure, nan_faults, output_faults, outputs_of
from tritonctl.smoke.inputs import sequence_parameters
from tritonctl.smoke.model_under_test import ModelUnderTest, first_answer
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.output_checks import each_output_check

_BATCH = 3


def tensor_checks(subject: ModelUnderTest) -> Iterator[SmokeOutcome]:
    """Check that a model with one response answers as declared."""
    request, answer = first_answer(subject)
    if wrong := answer_failure(answer, subject.client.seconds):
        yield subject.fail_outcome("answers", wrong, request)
        return
    yield subject.pass_outcome("answers", outputs_of(answer.responses[0]))
    wrong_outputs = output_faults(subject.config, answer.responses, batch=1)
    yield subject.verdict_outcome(
        "outputs", wrong_outputs, "names, types and shapes as declared", request
    )
    if wrong_outputs:  # every further request would fail as well
        return
    yield subject.verdict_outcome("numbers", nan_faults(answer.responses), "no NaN", request)
    yield each_output_check(subject)
    if "sequence_batching" in subject.config:
        yield _sequence_check(subject)
        return
    yield _batch_check(subject)
    yield _optional_inputs_check(subject)


def _batch_check(subject: ModelUnderTest) -> SmokeOutcome:
    max_batch_size = int(subject.config.get("max_batch_size", 0))
    if max_batch_size <= 1:
        return subject.skip_outcome("batch", f"max_batch_size is {max_batch_size}")
    size = min(_BATCH, max_batch_size)
    request = subject.request(subject.inputs(batch=size))
    [answer] = subject.client.send_all(request.message, stream=False)
    wrong = answer_failure(answer, subject.client.seconds)
    if wrong:
        return subject.fail_outcome("batch", f"a batch of {size}: {wrong}", request)
    problems = output_faults(subject.config, answer.responses, batch=size)
    return subject.verdict_outcome("batch", problems, f"{size} in one request", request)


def _optional_inputs_check(subject: ModelUnderTest) -> SmokeOutcome:
    inputs = subject.config.get("input", ())
    names = [tensor["name"] for tensor in inputs if tensor.get("optional")]
    if not names:
        return subject.skip_outcome("optional inputs", "it has none")
    request = subject.request(subject.inputs(optional=True))
    [answer] = subject.client.send_all(request.message, stream=False)
    if answer.timed_out:
        return subject.fail_outcome("optional inputs", "no answer with all of them", request)
    if answer.error:  # the inputs may exclude each other, or reject ones
        return subject.skip_outcome("optional inputs", f"rejected with all of them: {answer.error}")
    wrong = output_faults(subject.config, answer.responses, batch=1)
    return subject.verdict_outcome("optional inputs", wrong, f"with {', '.join(names)}", request)


def _sequence_check(subject: ModelUnderTest) -> SmokeOutcome:
    """Send the first, the middle and the last request of a sequence, one after another."""
    for position, parameters in zip(
        ("first", "middle", "last"), sequence_parameters(subject.config), strict=True
    ):
        request = subject.request(subject.inputs(), parameters=parameters)
        [answer] = subject.client.send_all(request.message, stream=False)
        wrong = answer_failure(answer, subject.client.seconds)
        problems = [wrong] if wrong else output_faults(subject.config, answer.responses, batch=1)
        if problems:
            return subject.fail_outcome(
                "sequence", f"{position} request: {'; '.join(problems)}", request
            )
    return subject.pass_outcome("sequence", "start, middle, end")

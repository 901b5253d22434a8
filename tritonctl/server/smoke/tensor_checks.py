# SPDX-License-Identifier: Apache-2.0
"""Checks of models that answer once: one request, a batch, all inputs, a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.server.smoke.answers import failure_of, faults, nan_faults, outputs_of
from tritonctl.server.smoke.inputs import sequence_parameters
from tritonctl.server.smoke.outcomes import Outcome
from tritonctl.server.smoke.subject import Subject, first_answer

_BATCH = 3


def tensor_checks(subject: Subject) -> Iterator[Outcome]:
    """Whether a model that answers once does so as declared."""
    request, answer = first_answer(subject)
    if wrong := failure_of(answer, subject.client.seconds):
        yield subject.failed("answers", wrong, request)
        return
    yield subject.passed("answers", outputs_of(answer.responses[0]))
    wrong_outputs = faults(subject.config, answer.responses, batch=1)
    yield subject.judged("outputs", wrong_outputs, "names, types and shapes as declared", request)
    if wrong_outputs:  # as they would be with every further request
        return
    yield subject.judged("numbers", nan_faults(answer.responses), "no NaN", request)
    if "sequence_batching" in subject.config:
        yield _sequence(subject)
        return
    yield _batch(subject)
    yield _optional(subject)


def _batch(subject: Subject) -> Outcome:
    largest = int(subject.config.get("max_batch_size", 0))
    if largest <= 1:
        return subject.skipped("batch", f"max_batch_size is {largest}")
    size = min(_BATCH, largest)
    request = subject.request(subject.inputs(batch=size))
    [answer] = subject.client.ask(request.message, stream=False)
    wrong = failure_of(answer, subject.client.seconds)
    if wrong:
        return subject.failed("batch", f"a batch of {size}: {wrong}", request)
    problems = faults(subject.config, answer.responses, batch=size)
    return subject.judged("batch", problems, f"{size} in one request", request)


def _optional(subject: Subject) -> Outcome:
    inputs = subject.config.get("input", ())
    names = [tensor["name"] for tensor in inputs if tensor.get("optional")]
    if not names:
        return subject.skipped("optional inputs", "it has none")
    request = subject.request(subject.inputs(optional=True))
    [answer] = subject.client.ask(request.message, stream=False)
    if answer.timed_out:
        return subject.failed("optional inputs", "no answer with all of them", request)
    if answer.error:  # they may exclude each other, or may not take ones
        return subject.skipped("optional inputs", f"refused with all of them: {answer.error}")
    wrong = faults(subject.config, answer.responses, batch=1)
    return subject.judged("optional inputs", wrong, f"with {', '.join(names)}", request)


def _sequence(subject: Subject) -> Outcome:
    """Send the first, the middle and the last request of a sequence, one after another."""
    for place, parameters in zip(
        ("first", "middle", "last"), sequence_parameters(subject.config), strict=True
    ):
        request = subject.request(subject.inputs(), parameters=parameters)
        [answer] = subject.client.ask(request.message, stream=False)
        wrong = failure_of(answer, subject.client.seconds)
        problems = [wrong] if wrong else faults(subject.config, answer.responses, batch=1)
        if problems:
            return subject.failed("sequence", f"{place} request: {'; '.join(problems)}", request)
    return subject.passed("sequence", "start, middle, end")

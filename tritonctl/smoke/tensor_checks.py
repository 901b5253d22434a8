# SPDX-License-Identifier: Apache-2.0
"""Checks of models that take and give tensors: once, in a batch, with all inputs, in a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.smoke.answers import described, faults, how_it_failed, not_numbers
from tritonctl.smoke.inputs import (
    sequence_parameters,
)
from tritonctl.smoke.outcomes import Outcome
from tritonctl.smoke.subject import Subject, first_answer

_BATCH = 3


def tensor_checks(subject: Subject) -> Iterator[Outcome]:
    """Whether a model that answers once answers as it is declared."""
    request, answer = first_answer(subject)
    if wrong := how_it_failed(answer, subject.client.seconds):
        yield subject.failed("answers", wrong, request)
        return
    yield subject.passed("answers", described(answer.responses[0]))
    wrong_outputs = faults(subject.config, answer.responses, batch=1)
    yield subject.judged("outputs", wrong_outputs, "names, types and shapes as declared", request)
    if wrong_outputs:  # and with every further request again
        return
    holes = not_numbers(answer.responses)
    yield subject.judged("numbers", holes, "no NaN", request)
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
    arrays = subject.inputs(batch=size)
    request = subject.request(arrays)
    [answer] = subject.client.ask(request.message, stream=False)
    wrong = how_it_failed(answer, subject.client.seconds)
    told = [f"a batch of {size}: {wrong}"] if wrong else []
    told += faults(subject.config, answer.responses, batch=size) if not wrong else []
    return subject.judged("batch", told, f"{size} in one request", request)


def _optional(subject: Subject) -> Outcome:
    names = [one["name"] for one in subject.config.get("input", ()) if one.get("optional")]
    if not names:
        return subject.skipped("optional inputs", "there are none")
    arrays = subject.inputs(optional=True)
    request = subject.request(arrays)
    [answer] = subject.client.ask(request.message, stream=False)
    if answer.timed_out:
        return subject.failed("optional inputs", "no answer with all of them", request)
    if answer.error:  # they may exclude each other, or ones may be no value for them
        return subject.skipped("optional inputs", f"refused with all of them: {answer.error}")
    wrong = faults(subject.config, answer.responses, batch=1)
    return subject.judged("optional inputs", wrong, f"with {', '.join(names)}", request)


def _sequence(subject: Subject) -> Outcome:
    """First, middle and last request, one after the other."""
    for place, parameters in zip(
        ("first", "middle", "last"), sequence_parameters(subject.config), strict=True
    ):
        arrays = subject.inputs()
        request = subject.request(arrays, parameters=parameters)
        [answer] = subject.client.ask(request.message, stream=False)
        wrong = how_it_failed(answer, subject.client.seconds)
        told = [wrong] if wrong else faults(subject.config, answer.responses, batch=1)
        if told:
            return subject.failed("sequence", f"{place} request: {'; '.join(told)}", request)
    return subject.passed("sequence", "start, middle, end")

# SPDX-License-Identifier: Apache-2.0
"""Send several requests at once: all are answered, each with its own answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonctl.protocol.model_config import instances_of
from tritonctl.protocol.tensors import infer_response
from tritonctl.smoke.answer_checks import answer_failure, is_busy
from tritonctl.smoke.model_under_test import ModelUnderTest, SmokeRequest
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.recording_client import RecordedAnswer

if TYPE_CHECKING:
    from numpy.typing import NDArray

AT_ONCE, _OWN_ANSWERS = "at once", "own answers"
_REQUESTS = 8
_FILLS = (1, 0)  # the values of the two kinds of requests
# No larger batch of neighbours reads the same backwards or one further.
_KINDS = (0, 0, 0, 1, 0, 1, 1, 1)
_REPEATS = 2
# Before a failure: a model that answers at random seldom repeats itself so often.
_CONFIRMATIONS = 4
# The last of several requests that run one after the other must be answered in time, too.
_TIME_SHARE = 0.5
# A wave that took this share of so many single requests ran them one after the other. Below
# that time, transfers and thread wake-ups dominate.
_SERIAL_SHARE = 0.8
_MIN_SERIAL_SECONDS = 0.05
# Batches round differently from single requests.
_RELATIVE, _ABSOLUTE = 1e-2, 1e-3

Tensors = list[Mapping[str, "NDArray[Any]"]]  # of each response of an answer


def at_once_check(subject: ModelUnderTest) -> SmokeOutcome:
    """Send equal requests concurrently; all must be answered in time."""
    started = time.monotonic()
    request = subject.request(subject.inputs())
    [alone] = _send(subject, [request])
    seconds = time.monotonic() - started
    if wrong := _failure(subject, alone):
        return subject.fail_outcome(AT_ONCE, f"one request: {wrong}", request)
    count = min(_REQUESTS, int(_TIME_SHARE * subject.client.seconds / max(seconds, 1e-3)))
    if count <= 1:
        return subject.skip_outcome(AT_ONCE, f"one request takes {seconds:.1f} s")
    requests = [subject.request(subject.inputs()) for _ in range(count)]
    started = time.monotonic()
    answers = _send(subject, requests)
    wave_seconds = time.monotonic() - started
    if any(is_busy(answer) for answer in answers):
        return subject.skip_outcome(AT_ONCE, f"its queue does not hold {count} requests")
    failures = [wrong for answer in answers if (wrong := _failure(subject, answer))]
    if failures:
        detail = f"{len(failures)} of {count} at once: {failures[0]}"
        return subject.fail_outcome(AT_ONCE, detail, request)
    detail = f"{count} in {wave_seconds:.2g} s, one alone in {seconds:.2g} s"
    if (
        seconds >= _MIN_SERIAL_SECONDS
        and wave_seconds >= _SERIAL_SHARE * count * seconds
        and instances_of(subject.config) == 1
    ):
        detail += ": its instance runs them one after the other"
    return subject.pass_outcome(AT_ONCE, detail)


def own_answers_check(subject: ModelUnderTest) -> SmokeOutcome:
    """Send requests of ones and of zeros concurrently; none may get the other's answer."""
    alone: list[Tensors] = []
    for fill in _FILLS:
        tensors = _repeated_answer(subject, fill, _REPEATS)
        if isinstance(tensors, str):
            return subject.skip_outcome(_OWN_ANSWERS, tensors)
        alone.append(tensors)
    if _match(*alone):
        return subject.skip_outcome(_OWN_ANSWERS, "it answers ones and zeros alike")
    return _mixed_wave(subject, alone)


def _mixed_wave(subject: ModelUnderTest, alone: list[Tensors]) -> SmokeOutcome:
    """Send both kinds of requests at once and compare with their answers `alone`."""
    requests = [subject.request(subject.inputs(fill=_FILLS[kind])) for kind in _KINDS]
    answers = _send(subject, requests)
    if any(is_busy(answer) for answer in answers):
        return subject.skip_outcome(_OWN_ANSWERS, f"its queue does not hold {len(_KINDS)} requests")
    exchanged, different = [], 0
    for request, answer, kind in zip(requests, answers, _KINDS, strict=True):
        if wrong := _failure(subject, answer):
            return subject.fail_outcome(_OWN_ANSWERS, f"ones and zeros at once: {wrong}", request)
        tensors = _tensors(answer)
        if not _match(tensors, alone[kind]):
            different += 1
            if _match(tensors, alone[1 - kind]):
                exchanged.append(request)
    confirmed = [
        _repeated_answer(subject, fill, _CONFIRMATIONS) for fill in _FILLS * bool(exchanged)
    ]
    unconfirmed = next((reason for reason in confirmed if isinstance(reason, str)), "")
    if confirmed and not unconfirmed:
        detail = f"{len(exchanged)} of {len(_KINDS)} at once got the answer to another request"
        return subject.fail_outcome(_OWN_ANSWERS, detail, exchanged[0])
    if different:
        detail = f"{different} of {len(_KINDS)} at once differ from the answer to the request alone"
        detail += f"; asked alone again: {unconfirmed}" if unconfirmed else ""
        return subject.skip_outcome(_OWN_ANSWERS, detail)
    return subject.pass_outcome(_OWN_ANSWERS, f"{len(_KINDS)} at once, each answered as alone")


def _send(subject: ModelUnderTest, requests: list[SmokeRequest]) -> list[RecordedAnswer]:
    return subject.client.send_all(
        *(request.message for request in requests), stream=subject.decoupled
    )


def _failure(subject: ModelUnderTest, answer: RecordedAnswer) -> str:
    wrong = answer_failure(answer, subject.client.seconds)
    if not wrong and subject.decoupled and answer.finals != 1:
        return f"{answer.finals or 'no'} final responses"
    return wrong


def _repeated_answer(subject: ModelUnderTest, fill: int, times: int) -> Tensors | str:
    """Return the tensors of an answer that stays the same; a str says why there is none."""
    first: Tensors | None = None
    for _ in range(times):
        [answer] = _send(subject, [subject.request(subject.inputs(fill=fill))])
        if wrong := _failure(subject, answer):
            return f"inputs filled with {fill} are not answered: {wrong}"
        tensors = _tensors(answer)
        if first is not None and not _match(first, tensors):
            return "it answers differently when repeated"
        first = tensors
    return first or []


def _tensors(answer: RecordedAnswer) -> Tensors:
    return [infer_response(response) for response in answer.responses]


def _match(left: Tensors, right: Tensors) -> bool:
    """Whether two answers are the same, up to rounding."""
    return len(left) == len(right) and all(
        one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
        for one, other in zip(left, right, strict=True)
    )


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    if left.shape != right.shape:
        return False
    if left.dtype.kind == "f":
        return np.allclose(left, right, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
    return np.array_equal(left, right)

# SPDX-License-Identifier: Apache-2.0
"""Whether an engine stops for a client that is gone: streams left early, its metrics watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tritonctl.protocol.metrics import Metrics
from tritonctl.smoke.outcomes import Outcome
from tritonctl.smoke.subject import Request, Subject
from tritonctl.smoke.text_checks import text_request

_CHECK = "cancellation"
_COUNTER = "tritonctl_requests_total"
# Long enough that an engine does not come to its end before it can hear of it.
_TOKENS = (1000, 400, 120)
_POLL_SECONDS = 0.05
# What tritonctl's engines promise is half a second; the rest is a busy machine's.
_FREE_SECONDS = 5.0
_ENGINE_SECONDS = 1.0
# A small model may be done with all the tokens of one stream before it hears of it.
_STREAMS = (1, 8, 32, 32)

Scrape = Callable[[], Metrics]


def cancel_check(subject: Subject, prompt: str, scrape: Scrape | str) -> Outcome:
    """Streams are left after their first response; the engine must hear of it."""
    if isinstance(scrape, str):
        return subject.skipped(_CHECK, scrape)
    models = [subject.name, *subject.steps]
    if not any(scrape().samples(_COUNTER, model=model) for model in models):
        return subject.skipped(_CHECK, f"no step counts its requests ({_COUNTER})")
    for streams in _STREAMS:
        before = scrape()
        request, wrong = _leave(subject, prompt, streams)
        if wrong:
            return subject.skipped(_CHECK, f"no long stream to leave: {wrong}")
        found = _freed(subject, models, before, scrape, request)
        if found.status != "skipped":
            break
    return found


def _leave(subject: Subject, prompt: str, streams: int) -> tuple[Request, str]:
    for tokens in _TOKENS:
        request = text_request(subject, prompt, tokens, end_id=-1)
        answer = subject.client.leave_early(request.message, streams)
        if not answer.error:
            break
    return request, answer.error


def _freed(
    subject: Subject, models: Collection[str], before: Metrics, scrape: Scrape, request: Request
) -> Outcome:
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < _FREE_SECONDS:
        now = scrape()
        if _ended(now, models, "cancelled") > _ended(before, models, "cancelled"):
            return subject.passed(
                _CHECK, f"the slot was free {seconds:.1f} s after the client left"
            )
        ended = _ended(now, models) > _ended(before, models)
        if ended and seconds > _ENGINE_SECONDS:  # by itself, or it is another client's
            break
        time.sleep(_POLL_SECONDS)
    else:
        told = f"the engine still worked for it {_FREE_SECONDS:g} s after the client left"
        return subject.failed(_CHECK, told, request)
    return subject.skipped(
        _CHECK, f"a request ended {seconds:.1f} s after the client left, not as cancelled"
    )


def _ended(metrics: Metrics, models: Collection[str], outcome: str | None = None) -> float:
    labels = {"outcome": outcome} if outcome else {}
    return sum(metrics.total(_COUNTER, model=model, **labels) for model in models)

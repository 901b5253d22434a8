# SPDX-License-Identifier: Apache-2.0
"""Whether an engine stops working for a client that has left, as its metrics show."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tritonctl.protocol.metrics import Metrics
from tritonctl.server.smoke.outcomes import Outcome
from tritonctl.server.smoke.subject import Request, Subject
from tritonctl.server.smoke.text_checks import text_request

_CHECK = "cancellation"
_COUNTER = "tritonctl_requests_total"
# Long enough that the engine is not done before the cancellation reaches it.
_TOKENS = (1000, 400, 120)
_POLL_SECONDS = 0.05
# tritonctl's engines promise half a second; the rest is for busy machines.
_FREE_SECONDS = 5.0
_ENGINE_SECONDS = 1.0
# A small model may finish one stream before the cancellation reaches it.
_STREAMS = (1, 8, 32, 32)

Scrape = Callable[[], Metrics]


def cancel_check(subject: Subject, prompt: str, scrape: Scrape | str) -> Outcome:
    """Leave streams after their first response; the engine must notice."""
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
        outcome = _freed(subject, models, before, scrape, request)
        if outcome.status != "skipped":
            break
    return outcome


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
        if ended and seconds > _ENGINE_SECONDS:  # it was done, or it is another client's
            break
        time.sleep(_POLL_SECONDS)
    else:
        detail = f"the engine still worked for it {_FREE_SECONDS:g} s after the client left"
        return subject.failed(_CHECK, detail, request)
    return subject.skipped(
        _CHECK, f"a request ended {seconds:.1f} s after the client left, not as cancelled"
    )


def _ended(metrics: Metrics, models: Collection[str], outcome: str | None = None) -> float:
    labels = {"outcome": outcome} if outcome else {}
    return sum(metrics.total(_COUNTER, model=model, **labels) for model in models)

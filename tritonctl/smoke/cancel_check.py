# SPDX-License-Identifier: Apache-2.0
"""Check by metrics that an engine stops working for a disconnected client."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tritonctl.protocol.metrics import Metrics
from tritonctl.smoke.model_under_test import ModelUnderTest, SmokeRequest
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.text_checks import text_request

_CHECK = "cancellation"
_COUNTER = "tritonctl_requests_total"
# Long enough that the engine does not finish before the cancellation reaches it.
_TOKENS = (1000, 400, 120)
_POLL_SECONDS = 0.05
# tritonctl's engines need half a second; busy machines need more.
_FREE_SECONDS = 5.0
_ENGINE_SECONDS = 1.0
# A small model may finish one stream before the cancellation reaches it.
_STREAMS = (1, 8, 32, 32)

Scrape = Callable[[], Metrics]


def cancel_check(subject: ModelUnderTest, prompt: str, scrape: Scrape | str) -> SmokeOutcome:
    """Cancel streams after their first response and check that the engine stops."""
    if isinstance(scrape, str):
        return subject.skip_outcome(_CHECK, scrape)
    models = [subject.name, *subject.steps]
    if not any(scrape().samples(_COUNTER, model=model) for model in models):
        return subject.skip_outcome(_CHECK, f"no step counts its requests ({_COUNTER})")
    for streams in _STREAMS:
        baseline = scrape()
        request, wrong = _cancel_streams(subject, prompt, streams)
        if wrong:
            return subject.skip_outcome(_CHECK, f"no long stream to cancel: {wrong}")
        outcome = _cancellation_outcome(subject, models, baseline, scrape, request)
        if outcome.status != "skipped":
            break
    return outcome


def _cancel_streams(subject: ModelUnderTest, prompt: str, streams: int) -> tuple[SmokeRequest, str]:
    for tokens in _TOKENS:
        request = text_request(subject, prompt, tokens, end_id=-1)
        answer = subject.client.cancel_early(request.message, streams)
        if not answer.error:
            break
    return request, answer.error


def _cancellation_outcome(
    subject: ModelUnderTest,
    models: Collection[str],
    baseline: Metrics,
    scrape: Scrape,
    request: SmokeRequest,
) -> SmokeOutcome:
    start_time = time.monotonic()
    while (seconds := time.monotonic() - start_time) < _FREE_SECONDS:
        current = scrape()
        if _finished_requests(current, models, "cancelled") > _finished_requests(
            baseline, models, "cancelled"
        ):
            return subject.pass_outcome(
                _CHECK, f"the slot was free {seconds:.1f} s after the client disconnected"
            )
        has_finished = _finished_requests(current, models) > _finished_requests(baseline, models)
        if (
            has_finished and seconds > _ENGINE_SECONDS
        ):  # it was finished, or belongs to another client
            break
        time.sleep(_POLL_SECONDS)
    else:
        detail = f"the engine still worked {_FREE_SECONDS:g} s after the client disconnected"
        return subject.fail_outcome(_CHECK, detail, request)
    return subject.skip_outcome(
        _CHECK, f"a request finished {seconds:.1f} s after the disconnect, not as cancelled"
    )


def _finished_requests(
    metrics: Metrics, models: Collection[str], outcome: str | None = None
) -> float:
    labels = {"outcome": outcome} if outcome else {}
    return sum(metrics.total(_COUNTER, model=model, **labels) for model in models)

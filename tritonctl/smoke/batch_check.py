# SPDX-License-Identifier: Apache-2.0
"""Check dynamic batching: send concurrent requests and read Triton's statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tritonctl.protocol.model_config import Config, instances_of, is_cached
from tritonctl.smoke.answer_checks import answer_failure, is_busy
from tritonctl.smoke.model_under_test import ModelUnderTest, SmokeRequest
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.recording_client import Statistics

_CHECK = "batching"
_STREAMS = 8
_MIN_REQUESTS, _MAX_REQUESTS = 8, 32
_WAVES = 3
_STATUS_ORDER = ("pass", "skipped", "fail")
# Share of perfect batching, as the requests of one wave do not arrive at the same moment.
_MIN_SHARE = 0.25
_MIN_FACTOR = 1.2
# Requests that waited this many times their execution time could have been batched; waits below a
# millisecond come from thread wake-ups.
_MIN_WAIT_RATIO = 2.0
_MIN_WAIT_MS = 1.0


def dynamic_batching_check(subject: ModelUnderTest) -> SmokeOutcome:
    """Send concurrent requests, up to three waves; the best wave counts.

    All requests have the same shapes, so that they fit into one batch; only ragged inputs differ.
    """
    if reason := no_batching_reason(subject.config):
        return subject.skip_outcome(_CHECK, reason)
    count = _request_count(subject.config)
    requests = [subject.request(subject.inputs(extra_length=number % 2)) for number in range(count)]
    request = requests[0]
    waves: list[tuple[float, Statistics]] = []
    for _ in range(_WAVES):
        baseline = subject.client.statistics(subject.name)
        answers = subject.client.send_all(
            *(each.message for each in requests), stream=subject.decoupled
        )
        if any(is_busy(answer) for answer in answers):
            return subject.skip_outcome(_CHECK, f"its queue does not hold {count} requests")
        for answer in answers:
            if wrong := answer_failure(answer, subject.client.seconds):
                return subject.fail_outcome(_CHECK, f"{count} requests at once: {wrong}", request)
        growth = subject.client.statistics(subject.name).since(baseline)
        waves.append((_batching_factor(growth), growth))
        if waves[-1][0] >= _expected_factor(subject.config, count):
            break
    return _batching_outcome(subject, max(waves, key=lambda wave: wave[0]), count, request)


def no_batching_reason(config: Config) -> str:
    """Return why no batches are expected; "" if batching is expected."""
    if "dynamic_batching" not in config:
        return "no dynamic_batching"
    if is_cached(config):
        return "its response cache answers equal requests"
    largest = int(config.get("max_batch_size", 0))
    return f"max_batch_size is {largest}" if largest <= 1 else ""


def _batching_outcome(
    subject: ModelUnderTest, best: tuple[float, Statistics], count: int, request: SmokeRequest
) -> SmokeOutcome:
    factor, growth = best
    expected = _expected_factor(subject.config, count)
    detail = f"{factor:.1f} requests per execution, of {count} at once"
    if factor >= expected:
        return subject.pass_outcome(_CHECK, detail)
    if not _have_waited(growth, subject.config):
        return subject.skip_outcome(_CHECK, f"{detail}: they hardly waited ({_times_text(growth)})")
    return subject.fail_outcome(
        _CHECK,
        f"{detail} ({_times_text(growth)}): batching should give at least {expected:.1f}",
        request,
    )


def concurrent_ensemble_check(
    subject: ModelUnderTest, request: SmokeRequest
) -> Iterator[SmokeOutcome]:
    """Send a request several times concurrently and check the batching of its steps.

    The best wave counts: on a busy machine a step's thread may lack a core, so that even separate
    requests wait.
    """
    steps = [step for step in subject.steps if not no_batching_reason(subject.configs[step])]
    best: dict[str, SmokeOutcome] = {}
    for _ in range(_WAVES):
        baseline = {step: subject.client.statistics(step) for step in steps}
        answers = subject.client.send_all(*[request.message] * _STREAMS, stream=subject.decoupled)
        if any(is_busy(answer) for answer in answers):
            yield subject.skip_outcome("at once", f"its queue does not hold {_STREAMS} requests")
            return
        wrong = [a for a in answers if a.error or (subject.decoupled and a.finals != 1)]
        if wrong:
            reason = wrong[0].error or f"{wrong[0].finals} final responses"
            detail = f"{len(wrong)} of {_STREAMS} at once: {reason}"
            yield subject.fail_outcome("at once", detail, request)
            return
        for outcome in step_outcomes(subject, baseline, request):
            earlier = best.get(outcome.model, outcome)
            best[outcome.model] = min(
                earlier, outcome, key=lambda entry: _STATUS_ORDER.index(entry.status)
            )
        if not any(outcome.status == "fail" for outcome in best.values()):
            break
    yield subject.pass_outcome(
        "at once", f"{_STREAMS} concurrent requests, each with one final response"
    )
    yield from best.values()


def step_outcomes(
    subject: ModelUnderTest, baseline: Mapping[str, Statistics], request: SmokeRequest
) -> Iterator[SmokeOutcome]:
    """Yield an outcome on how well each step of an ensemble has batched since `baseline`."""
    for name, earlier in baseline.items():
        growth = subject.client.statistics(name).since(earlier)
        factor = _batching_factor(growth)
        detail = f"{factor:.1f} requests per execution, under {subject.name}'s load"
        if growth.executions == 0:
            yield SmokeOutcome(name, _CHECK, "skipped", f"{subject.name} did not use it")
        elif factor >= _MIN_FACTOR:
            yield SmokeOutcome(name, _CHECK, "pass", detail)
        elif not _have_waited(growth, subject.configs[name]):
            detail = f"{detail}: they hardly waited ({_times_text(growth)})"
            yield SmokeOutcome(name, _CHECK, "skipped", detail)
        else:
            detail = f"{detail} ({_times_text(growth)}): they waited, then were executed one by one"
            yield SmokeOutcome(name, _CHECK, "fail", detail, request.record(), subject.repeat)


def _request_count(config: Config) -> int:
    """Return the number of concurrent requests: one per instance plus two batches."""
    largest = int(config["max_batch_size"])
    return max(_MIN_REQUESTS, min(_MAX_REQUESTS, (instances_of(config) or 1) + 2 * largest))


def _expected_factor(config: Config, count: int) -> float:
    """Return the expected requests per execution: one per instance alone, the others in batches."""
    single_requests = min(instances_of(config) or 1, count)
    batches = -(-(count - single_requests) // int(config["max_batch_size"]))
    return max(_MIN_FACTOR, _MIN_SHARE * count / (single_requests + batches))


def _batching_factor(growth: Statistics) -> float:
    return growth.inferences / growth.executions if growth.executions else 0.0


def _have_waited(growth: Statistics, config: Config) -> bool:
    """Whether requests waited long, beyond the configured queue delay."""
    delay = int(config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)) / 1000
    excess_wait_ms = growth.queue_ms - delay * growth.requests
    return excess_wait_ms > max(_MIN_WAIT_RATIO * growth.compute_ms, _MIN_WAIT_MS * growth.requests)


def _times_text(growth: Statistics) -> str:
    requests = max(1, growth.requests)
    queue, compute = growth.queue_ms / requests, growth.compute_ms / requests
    return f"{queue:.1f} ms in the queue, {compute:.1f} ms executed"

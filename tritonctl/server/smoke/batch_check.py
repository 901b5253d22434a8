# SPDX-License-Identifier: Apache-2.0
"""Whether dynamic batching batches: sends requests at once and reads Triton's statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tritonctl.protocol.model_config import Config, instances_of, is_cached
from tritonctl.server.smoke.answers import failure_of, is_busy
from tritonctl.server.smoke.outcomes import Outcome
from tritonctl.server.smoke.recording_client import Statistics
from tritonctl.server.smoke.subject import Request, Subject

_CHECK = "batching"
_STREAMS = 8
_LEAST, _MOST = 8, 32
_WAVES = 3
_BETTER = ("pass", "skipped", "fail")
# Of what perfect batching would give: the requests of one wave do not arrive at one moment.
_SHARE = 0.25
_FACTOR = 1.2
# Requests that waited this many times their execution could have been batched; waits below a
# millisecond come from threads waking up.
_WAITED = 2.0
_WAITED_MS = 1.0


def batch_check(subject: Subject) -> Outcome:
    """Send requests at once, up to three times; the best wave counts.

    All have the same shapes, so that they fit into one batch; only ragged inputs differ.
    """
    if reason := not_batched(subject.config):
        return subject.skipped(_CHECK, reason)
    count = _count(subject.config)
    requests = [subject.request(subject.inputs(longer=number % 2)) for number in range(count)]
    request = requests[0]
    waves: list[tuple[float, Statistics]] = []
    for _ in range(_WAVES):
        before = subject.client.statistics(subject.name)
        answers = subject.client.ask(*(each.message for each in requests), stream=subject.decoupled)
        if any(is_busy(answer) for answer in answers):
            return subject.skipped(_CHECK, f"its queue does not hold {count} requests")
        for answer in answers:
            if wrong := failure_of(answer, subject.client.seconds):
                return subject.failed(_CHECK, f"{count} requests at once: {wrong}", request)
        grown = subject.client.statistics(subject.name).since(before)
        waves.append((_factor(grown), grown))
        if waves[-1][0] >= _wanted(subject.config, count):
            break
    return _judged(subject, max(waves, key=lambda wave: wave[0]), count, request)


def not_batched(config: Config) -> str:
    """Why to expect no batches; "" where some are expected."""
    if "dynamic_batching" not in config:
        return "no dynamic_batching"
    if is_cached(config):
        return "its response cache answers equal requests"
    largest = int(config.get("max_batch_size", 0))
    return f"max_batch_size is {largest}" if largest <= 1 else ""


def _judged(
    subject: Subject, best: tuple[float, Statistics], count: int, request: Request
) -> Outcome:
    factor, grown = best
    wanted = _wanted(subject.config, count)
    detail = f"{factor:.1f} requests per execution, of {count} at once"
    if factor >= wanted:
        return subject.passed(_CHECK, detail)
    if not _waited(grown, subject.config):
        return subject.skipped(_CHECK, f"{detail}: they hardly waited ({_times(grown)})")
    return subject.failed(
        _CHECK, f"{detail} ({_times(grown)}): batching should give at least {wanted:.1f}", request
    )


def ensemble_check(subject: Subject, request: Request) -> Iterator[Outcome]:
    """Send a request several times at once, and see how its steps batch; the best wave counts.

    On a busy machine one wave says little: where a step's thread does not get a core, requests
    that come one by one wait all the same.
    """
    steps = [step for step in subject.steps if not not_batched(subject.configs[step])]
    best: dict[str, Outcome] = {}
    for _ in range(_WAVES):
        before = {step: subject.client.statistics(step) for step in steps}
        answers = subject.client.ask(*[request.message] * _STREAMS, stream=subject.decoupled)
        if any(is_busy(answer) for answer in answers):
            yield subject.skipped("at once", f"its queue does not hold {_STREAMS} requests")
            return
        wrong = [a for a in answers if a.error or (subject.decoupled and a.finals != 1)]
        if wrong:
            reason = wrong[0].error or f"{wrong[0].finals} final responses"
            detail = f"{len(wrong)} of {_STREAMS} at once: {reason}"
            yield subject.failed("at once", detail, request)
            return
        for outcome in step_outcomes(subject, before, request):
            earlier = best.get(outcome.model, outcome)
            best[outcome.model] = min(earlier, outcome, key=lambda one: _BETTER.index(one.status))
        if not any(outcome.status == "fail" for outcome in best.values()):
            break
    yield subject.passed("at once", f"{_STREAMS} requests at once, each with one end")
    yield from best.values()


def step_outcomes(
    subject: Subject, before: Mapping[str, Statistics], request: Request
) -> Iterator[Outcome]:
    """How well an ensemble's steps have batched since `before`."""
    for name, earlier in before.items():
        grown = subject.client.statistics(name).since(earlier)
        factor = _factor(grown)
        detail = f"{factor:.1f} requests per execution, under {subject.name}'s load"
        if grown.executions == 0:
            yield Outcome(name, _CHECK, "skipped", f"{subject.name} did not use it")
        elif factor >= _FACTOR:
            yield Outcome(name, _CHECK, "pass", detail)
        elif not _waited(grown, subject.configs[name]):
            detail = f"{detail}: they hardly waited ({_times(grown)})"
            yield Outcome(name, _CHECK, "skipped", detail)
        else:
            detail = f"{detail} ({_times(grown)}): they waited, then were executed one by one"
            yield Outcome(name, _CHECK, "fail", detail, request.record(), subject.repeat)


def _count(config: Config) -> int:
    """How many requests to send at once: one for each instance, and two batches more."""
    largest = int(config["max_batch_size"])
    return max(_LEAST, min(_MOST, (instances_of(config) or 1) + 2 * largest))


def _wanted(config: Config, count: int) -> float:
    """Requests per execution, when the first of each instance goes alone, the rest in batches."""
    alone = min(instances_of(config) or 1, count)
    batches = -(-(count - alone) // int(config["max_batch_size"]))
    return max(_FACTOR, _SHARE * count / (alone + batches))


def _factor(grown: Statistics) -> float:
    return grown.inferences / grown.executions if grown.executions else 0.0


def _waited(grown: Statistics, config: Config) -> bool:
    """Whether they waited for long, beyond the time in which a batch may gather."""
    delay = int(config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)) / 1000
    waited = grown.queue_ms - delay * grown.requests
    return waited > max(_WAITED * grown.compute_ms, _WAITED_MS * grown.requests)


def _times(grown: Statistics) -> str:
    requests = max(1, grown.requests)
    queue, compute = grown.queue_ms / requests, grown.compute_ms / requests
    return f"{queue:.1f} ms in the queue, {compute:.1f} ms executed"

# SPDX-License-Identifier: Apache-2.0
"""Estimate the capacity of settings by queueing theory, so that the search skips hopeless ones.

A batch of b takes S(b) = fixed + each * b, the usual shape of an inference server (Y. Inoue,
"Queueing Analysis of GPU-Based Inference Servers with Dynamic Batching: A Closed-Form
Characterization", Performance Evaluation 147, 2021, arXiv:1912.06322). Batches are the customers of
a G/G/c queue, whose waiting time is Erlang's for M/M/c times (c_a^2 + c_s^2) / 2 (the approximation
of Allen and Cunneen; A. O. Allen, "Probability, Statistics, and Queueing Theory", 1990, chapter 5).
Its tail is taken as exponential. Good enough to rank settings, not to predict a P99.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_TAIL = 0.01  # P99
_Z = 2.33  # of a normal distribution
_BISECTIONS = 30
_ROUNDS = 25


@dataclass(frozen=True)
class ServiceCurve:
    """S(b) = fixed + each * b, seconds."""

    fixed: float
    each: float

    def seconds(self, batch: float) -> float:
        """Return the time of a batch, or of a step with as many sequences."""
        return self.fixed + self.each * batch


def fit_curve(points: Sequence[tuple[float, float]]) -> ServiceCurve | None:
    """Fit a nonnegative line to (batch, seconds) by least squared relative errors.

    None without points.
    """
    usable = [(b, s) for b, s in points if b > 0 and s > 0]
    if not usable:
        return None
    weights = [1 / s**2 for _, s in usable]
    total = sum(weights)
    mean_b = sum(w * b for w, (b, _) in zip(weights, usable, strict=True)) / total
    mean_s = sum(w * s for w, (_, s) in zip(weights, usable, strict=True)) / total
    spread = sum(w * (b - mean_b) ** 2 for w, (b, _) in zip(weights, usable, strict=True))
    product = sum(
        w * (b - mean_b) * (s - mean_s) for w, (b, s) in zip(weights, usable, strict=True)
    )
    each = max(0.0, product / spread) if spread > 0 else 0.0
    if mean_s - each * mean_b < 0:
        return ServiceCurve(0.0, mean_s / mean_b)
    return ServiceCurve(mean_s - each * mean_b, each)


@dataclass(frozen=True)
class BatchServer:
    """A batching server."""

    curve: ServiceCurve
    instances: int
    max_batch: int
    delay: float = 0.0  # seconds that the oldest request may wait for others
    threads: int = 1  # busy threads per instance
    cores: int = 1
    variation: float = 0.1  # squared coefficient of variation of service times

    @property
    def crowding(self) -> float:
        """The slowdown while all instances work, as in the tail."""
        return max(1.0, self.instances * self.threads / self.cores)


def erlang_c(servers: int, load: float) -> float:
    """Return the probability that a customer of M/M/c waits; `load` in Erlangs."""
    if load >= servers:
        return 1.0
    blocked = 1.0  # Erlang's B, by its recursion
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def waiting_p99(
    servers: int, arrivals: float, service: float, variation: float, irregularity: float = 1.0
) -> float:
    """Return P99 of the waiting time in seconds; infinite for an unstable queue.

    variation, irregularity: squared coefficients of variation of service times and of arrivals.
    """
    load = arrivals * service
    if load >= servers:
        return math.inf
    waits = erlang_c(servers, load)
    if waits <= _TAIL:
        return 0.0
    mean_of_waiting = service / (servers - load) * (irregularity + variation) / 2
    return math.log(waits / _TAIL) * mean_of_waiting


def response_p99(server: BatchServer, rate: float) -> float:
    """Return P99 of the response time at `rate` requests per second; infinite above capacity."""
    mean, crowding = _mean_batch(server, rate), server.crowding
    # A batch holds the arrivals of one service time: Poisson, hence this P99.
    large = min(float(server.max_batch), mean + _Z * math.sqrt(mean))
    seconds = server.curve.seconds(large) * crowding
    full = server.curve.seconds(server.max_batch) * crowding
    # A request that finds all instances busy waits for the first to finish, and longer only if the
    # waiting requests fill a batch: groups of B arrivals are B times as regular as single ones.
    ready = seconds * (1 - math.pow(_TAIL, 1 / server.instances))
    queued = waiting_p99(
        server.instances, rate / server.max_batch, full, server.variation, 1 / server.max_batch
    )
    if server.max_batch == 1:
        ready = 0.0
    filling = min(server.delay, (server.max_batch - 1) / rate)
    return max(filling, ready, queued) + seconds


def _mean_batch(server: BatchServer, rate: float) -> float:
    """Return the mean batch: the arrivals while an instance processes the previous batch."""
    batch = 1.0
    for _ in range(_ROUNDS):
        seconds = server.curve.seconds(batch) * server.crowding
        gathered = rate * (seconds / server.instances + server.delay)
        batch = min(float(server.max_batch), max(1.0, (batch + gathered) / 2))
    return batch


def capacity(server: BatchServer, limit: float) -> float:
    """Return the highest rate with a P99 response time of at most `limit` seconds."""
    max_rate = server.instances * server.max_batch / server.curve.seconds(server.max_batch)
    return _highest_rate(lambda rate: response_p99(server, rate) <= limit, max_rate)


@dataclass(frozen=True)
class Decoder:
    """A text engine with continuous batching: a step of b sequences takes S(b).

    Limits in seconds; infinite without an SLO target.
    """

    step: ServiceCurve
    instances: int
    max_sequences: int
    tokens: float  # of an answer
    ttft: float = math.inf
    itl: float = math.inf
    e2e: float = math.inf
    cores: int = 1

    def meets(self, rate: float) -> bool:
        """Whether all limits hold at `rate` requests per second."""
        each = rate / self.instances
        working = each * self.tokens * self.step.fixed
        free = 1 - each * self.tokens * self.step.each
        if free <= 0:
            return False
        # Little's law for steps that take longer with more sequences.
        running = min(working / free, float(self.max_sequences))
        crowding = max(1.0, self.instances / self.cores)
        busy = min(self.max_sequences, running + _Z * math.sqrt(running))
        answer = self.tokens * self.step.seconds(running) * crowding
        wait = waiting_p99(self.max_sequences, each, answer, 1.0)
        first = wait + 2 * self.step.seconds(busy) * crowding
        gap = self.step.seconds(busy) * crowding
        return first <= self.ttft and gap <= self.itl and first + self.tokens * gap <= self.e2e


def decoder_capacity(decoder: Decoder) -> float:
    """Return the highest rate at which a text engine meets its limits."""
    max_rate = (
        decoder.instances * decoder.max_sequences / (decoder.tokens * decoder.step.seconds(1))
    )
    return _highest_rate(decoder.meets, max_rate)


def _highest_rate(is_met: Callable[[float], bool], max_rate: float) -> float:
    low, high = 0.0, max_rate
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return low

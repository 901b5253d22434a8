# SPDX-License-Identifier: Apache-2.0
"""The result of a load test: `summary.json` of its folder, as typed values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import read_object, write_atomically
from tritonctl.project.expected import reason

SCHEMA = "tritonctl/loadsummary/v1"
SUMMARY = "summary.json"
NO_VERSION = "none"  # of requests that nobody answered
# No 99th percentile from fewer requests, no decision from fewer than the second number.
P99_REQUESTS, P999_REQUESTS, DECISIVE_REQUESTS = 500, 5000, 5000

MET, MISSED, UNDECIDED = "met", "missed", "undecided"


@dataclass(frozen=True)
class Percentile:
    """A percentile with its 95 % interval. None: so few independent requests have no such bound."""

    q: float
    ms: float
    low_ms: float | None
    high_ms: float | None


@dataclass(frozen=True)
class Distribution:
    """How one duration is distributed. `n` counts requests (for itl: gaps between tokens).

    `censored` of them were given up: they took at least as long as counted. `histogram` is an
    HdrHistogram of microseconds in its base64 form.
    """

    n: int
    mean_ms: float
    min_ms: float
    max_ms: float
    percentiles: tuple[Percentile, ...]
    histogram: str
    censored: int = 0

    def percentile(self, q: float) -> Percentile | None:
        """The percentile at `q` (0.99), None where there were too few requests for it."""
        return next((p for p in self.percentiles if abs(p.q - q) < 1e-9), None)  # noqa: PLR2004


@dataclass(frozen=True)
class Window:
    """The part that was measured, in seconds since the run's start."""

    from_s: float
    to_s: float
    warm_up_s: float
    stationary: bool
    why: str
    growth: float = 0.0  # of response times that rose: how much of their level, in that time


@dataclass(frozen=True)
class Counts:
    """What became of the requests planned in the window; `unsent` of the whole run."""

    planned: int
    sent: int
    ok: int
    error: int
    cancelled: int
    timeout: int
    abandoned: int
    unsent: int


@dataclass(frozen=True)
class ErrorGroup:
    """Failures of one kind and message, over the whole run."""

    kind: str
    message: str
    count: int


@dataclass(frozen=True)
class Rates:
    """Per second of the window. Achieved: answered in it, whenever they were planned.

    Goodput: answered within every limit of the SLO, of those planned in the window.
    """

    offered_rps: float
    achieved_rps: float
    tokens_per_s: float
    goodput_rps: float
    goodput_share: float | None


@dataclass(frozen=True)
class ClassSummary:
    """The figures of one class of requests."""

    counts: Counts
    rates: Rates
    metrics: dict[str, Distribution]


@dataclass(frozen=True)
class SloVerdict:
    """One SLO target: the share of requests that missed it, against the share that may.

    `limit_ms` is None for the error rate, which is a share itself.
    """

    name: str
    limit_ms: float | None
    allowed_share: float
    share_over: float | None
    low: float | None
    high: float | None
    verdict: str
    why: str


@dataclass(frozen=True)
class EngineTimes:
    """What a text engine says of its requests itself: means in milliseconds.

    queue: until it has a place in the batch; prefill: from there to the first response; decode: to
    the last. `queue_ms` is None where an older engine does not tell it apart from prefill.
    """

    queue_ms: float | None
    prefill_ms: float
    decode_ms: float

    @property
    def whole_ms(self) -> float:
        """From submission to the last response."""
        return (self.queue_ms or 0.0) + self.prefill_ms + self.decode_ms


@dataclass(frozen=True)
class ModelFigures:
    """What the server says of one model during the window; times are means per request.

    `share` is its part of the time of all composing models. Of a decoupled model Triton counts only
    until it has taken a request, so `engine` has the time of its answers, where it tells them.
    """

    rate: float
    failures: float
    batch_factor: float | None
    queue_ms: float
    input_ms: float
    infer_ms: float
    output_ms: float
    request_ms: float
    share: float | None
    pending_max: float | None
    max_batch_size: int | None = None
    instances: int | None = None
    decoupled: bool = False
    engine: EngineTimes | None = None

    @property
    def whole_ms(self) -> float | None:
        """How long the model works on a request; None where nobody says it."""
        if self.engine is not None:
            return self.engine.whole_ms
        return None if self.decoupled else self.request_ms


@dataclass(frozen=True)
class Gauge:
    """A value that the server publishes, over the window; `change` is last - first."""

    mean: float
    maximum: float
    change: float


@dataclass(frozen=True)
class ServerFigures:
    """The server during the window. `cpu` is in cores, `host_cpu` a share of the machine."""

    seconds: float
    models: dict[str, ModelFigures]
    engine: dict[str, Gauge]
    cpu: float | None
    cpu_max: float | None
    host_cpu: float | None
    host_cpus: int | None
    rss_bytes: int | None


@dataclass(frozen=True)
class GeneratorFigures:
    """The load generator: its share of one core (of the busiest worker), how late it sent, how late
    its loop woke."""

    workers: int
    cpu_mean: float | None
    cpu_max: float | None
    send_lag_p99_ms: float | None
    woke_p99_ms: float | None = None


@dataclass(frozen=True)
class Summary:
    """A whole load test. `doubts`: what a longer run would tell of the generator.

    `versions`: by the version of the model that answered, the release's number; empty where no
    answer told it. `resumed`: answers that broke and went on.
    """

    scenario: str
    model: str
    reason: str
    valid: bool
    invalid_because: tuple[str, ...]
    window: Window
    counts: Counts
    errors: tuple[ErrorGroup, ...]
    rates: Rates
    metrics: dict[str, Distribution]
    classes: dict[str, ClassSummary]
    slo: tuple[SloVerdict, ...]
    slo_verdict: str | None
    decisive: bool
    generator: GeneratorFigures
    server: ServerFigures | None
    limited_by: str
    doubts: tuple[str, ...] = ()
    versions: dict[str, ClassSummary] = field(default_factory=dict)
    resumed: int = 0

    @property
    def failed(self) -> bool:
        """Whether a gate must fail: an SLO target was missed, or the measurement is invalid."""
        return not self.valid or self.slo_verdict == MISSED

    def to_record(self) -> dict[str, Any]:
        """The summary as plain data."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_record(cls, record: Any, *, origin: str = SUMMARY) -> Summary:
        """The inverse of `to_record`; `origin` names the file. Raises ConfigurationError."""
        from pydantic import TypeAdapter, ValidationError

        schema = record.get("schema") if isinstance(record, dict) else None
        if schema != SCHEMA:
            raise ConfigurationError(
                f"{origin}: its schema is {schema!r}, not {SCHEMA!r}",
                remedy="it was written by another version of tritonctl, or is not a load test's "
                "summary: `tritonctl loadtest report FOLDER` makes it again from the records",
            )
        try:
            return TypeAdapter(cls).validate_python(record)
        except ValidationError as error:
            raise ConfigurationError(
                f"{origin}: {reason(error)}",
                remedy="make it again from the records: `tritonctl loadtest report FOLDER`",
            ) from error


def write_summary(folder: Path, summary: Summary) -> Path:
    """Write `summary.json`; its presence says that the run's folder is whole. Raises HostError."""
    text = json.dumps(summary.to_record(), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomically(folder / SUMMARY, text + "\n")
    return folder / SUMMARY


def read_summary(folder: Path) -> Summary:
    """The summary of a run's folder. Raises ConfigurationError."""
    path = folder / SUMMARY
    if not path.exists():
        raise ConfigurationError(
            f"{path} does not exist: the run was killed, or this is not a load test",
            remedy=f"make it from what was recorded: `tritonctl loadtest report {folder}`",
        )
    again = f"make it again from the records: `tritonctl loadtest report {folder}`"
    return Summary.from_record(read_object(path, remedy=again), origin=str(path))

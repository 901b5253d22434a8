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
NO_VERSION = "none"  # of requests without a response
# Minimum requests for P99, for P99.9 and for a decision.
P99_REQUESTS, P999_REQUESTS, DECISIVE_REQUESTS = 500, 5000, 5000

MET, MISSED, UNDECIDED = "met", "missed", "undecided"


@dataclass(frozen=True)
class Percentile:
    """A percentile with its 95 % interval; a bound is None with too few independent requests."""

    q: float
    ms: float
    low_ms: float | None
    high_ms: float | None


@dataclass(frozen=True)
class DurationDistribution:
    """The distribution of one metric's durations."""

    n: int  # requests; for itl gaps between tokens
    mean_ms: float
    min_ms: float
    max_ms: float
    percentiles: tuple[Percentile, ...]
    histogram: str  # HdrHistogram of microseconds in base64
    censored: int = 0  # requests given up, counted with the time waited as a lower bound

    def percentile(self, q: float) -> Percentile | None:
        """Return the percentile at `q` (such as 0.99); None with too few requests."""
        return next((p for p in self.percentiles if abs(p.q - q) < 1e-9), None)  # noqa: PLR2004


@dataclass(frozen=True)
class Window:
    """The measured part of a run, in seconds since its start."""

    from_s: float
    to_s: float
    warm_up_s: float
    stationary: bool
    why: str
    growth: float = 0.0  # rise of the response times over the window, as a share of their level


@dataclass(frozen=True)
class RequestCounts:
    """The requests planned in the window by outcome."""

    planned: int
    sent: int
    ok: int
    error: int
    cancelled: int
    timeout: int
    abandoned: int
    unsent: int  # of the whole run
    empty: int = 0  # of `ok`: answers without tokens, never good


@dataclass(frozen=True)
class ErrorGroup:
    """Failures of one kind and message in the whole run."""

    kind: str
    message: str
    count: int


@dataclass(frozen=True)
class Rates:
    """Rates per second of the window."""

    offered_rps: float
    achieved_rps: float  # completed in the window, whenever planned
    tokens_per_s: float
    goodput_rps: float  # planned in the window, answered with tokens and within every SLO limit
    goodput_share: float | None


@dataclass(frozen=True)
class ClassSummary:
    """The figures of one class of requests."""

    counts: RequestCounts
    rates: Rates
    metrics: dict[str, DurationDistribution]


@dataclass(frozen=True)
class SloVerdict:
    """The verdict about one SLO target."""

    name: str
    limit_ms: float | None  # None for the error rate, which is itself a share
    allowed_share: float  # of requests over the limit
    share_over: float | None
    low: float | None
    high: float | None
    verdict: str
    why: str


@dataclass(frozen=True)
class EngineTimes:
    """A text engine's own mean times per request, in milliseconds."""

    queue_ms: float | None  # until admitted to the batch; None if an older engine omits it
    prefill_ms: float  # from admission to the first response
    decode_ms: float  # from the first to the last response

    @property
    def total_ms(self) -> float:
        """The time from submission to the last response."""
        return (self.queue_ms or 0.0) + self.prefill_ms + self.decode_ms


@dataclass(frozen=True)
class ModelLoadFigures:
    """The server's figures for one model in the window; times are means per request.

    For a decoupled model Triton counts only until the model accepts a request. `engine` then holds
    the times of its responses, if the engine publishes them.
    """

    rate: float
    failures: float
    batch_factor: float | None
    queue_ms: float
    input_ms: float
    infer_ms: float
    output_ms: float
    request_ms: float
    share: float | None  # of the time of all composing models
    pending_max: float | None
    max_batch_size: int | None = None
    instances: int | None = None
    decoupled: bool = False
    engine: EngineTimes | None = None
    reloads: int = 0  # counts around a reload are lost, so the rate is too low

    @property
    def total_ms(self) -> float | None:
        """The model's time per request; None if unpublished."""
        if self.engine is not None:
            return self.engine.total_ms
        return None if self.decoupled else self.request_ms


@dataclass(frozen=True)
class Gauge:
    """A published value of the server over the window."""

    mean: float
    maximum: float
    change: float  # last minus first; of a counter its growth, resets included


@dataclass(frozen=True)
class ServerLoadFigures:
    """The server's figures in the window."""

    seconds: float
    models: dict[str, ModelLoadFigures]
    engine: dict[str, Gauge]
    cpu: float | None  # in cores
    cpu_max: float | None
    host_cpu: float | None  # as a share of the machine
    host_cpus: int | None
    rss_bytes: int | None


@dataclass(frozen=True)
class GeneratorFigures:
    """The load generator's own figures; CPU as a share of one core per worker."""

    workers: int
    cpu_mean: float | None
    cpu_max: float | None
    send_lag_p99_ms: float | None
    woke_p99_ms: float | None = None  # lateness of the event loop


@dataclass(frozen=True)
class Summary:
    """The result of a load test."""

    scenario: str
    model: str
    reason: str
    valid: bool
    invalid_because: tuple[str, ...]
    window: Window
    counts: RequestCounts
    errors: tuple[ErrorGroup, ...]
    rates: Rates
    metrics: dict[str, DurationDistribution]
    classes: dict[str, ClassSummary]
    slo: tuple[SloVerdict, ...]
    slo_verdict: str | None
    decisive: bool
    generator: GeneratorFigures
    server: ServerLoadFigures | None
    limited_by: str
    doubts: tuple[str, ...] = ()  # possible generator problems that need a longer run
    versions: dict[str, ClassSummary] = field(default_factory=dict)  # by model version (release)
    resumed: int = 0  # broken streams that resumed
    single_response: int = 0  # answers of several tokens in one response: no ITL, no TPOT
    uncounted_tokens: int = 0  # answers without num_output_tokens: a response counts as a token

    @property
    def failed(self) -> bool:
        """Whether a gate must fail: an SLO target was missed, or the measurement is invalid."""
        return not self.valid or self.slo_verdict == MISSED

    @property
    def empty_share(self) -> float:
        """The share of the requests that were answered without tokens."""
        return self.counts.empty / max(1, self.counts.sent)

    def to_record(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_record(cls, record: Any, *, origin: str = SUMMARY) -> Summary:
        """Read a record; `origin` names its file in errors. Raises ConfigurationError."""
        from pydantic import TypeAdapter, ValidationError

        schema = record.get("schema") if isinstance(record, dict) else None
        if schema != SCHEMA:
            raise ConfigurationError(
                f"{origin}: its schema is {schema!r}, not {SCHEMA!r}",
                remedy="another version of tritonctl wrote it, or it is not a load test summary: "
                "`tritonctl loadtest report FOLDER` rebuilds it from the records",
            )
        try:
            return TypeAdapter(cls).validate_python(record)
        except ValidationError as error:
            raise ConfigurationError(
                f"{origin}: {reason(error)}",
                remedy="rebuild it from the records: `tritonctl loadtest report FOLDER`",
            ) from error


def write_summary(folder: Path, summary: Summary) -> Path:
    """Write `summary.json`, which marks the run's folder as complete. Raises HostError."""
    text = json.dumps(summary.to_record(), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomically(folder / SUMMARY, text + "\n")
    return folder / SUMMARY


def read_summary(folder: Path) -> Summary:
    """Read the summary of a run's folder. Raises ConfigurationError."""
    path = folder / SUMMARY
    if not path.exists():
        raise ConfigurationError(
            f"{path} does not exist: the run was killed, or this is not a load test",
            remedy=f"build it from the records: `tritonctl loadtest report {folder}`",
        )
    remedy = f"rebuild it from the records: `tritonctl loadtest report {folder}`"
    return Summary.from_record(read_object(path, remedy=remedy), origin=str(path))

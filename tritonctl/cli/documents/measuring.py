# SPDX-License-Identifier: Apache-2.0
"""Documents of verbs that measure a server or move its users to another release."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from tritonctl.rollout.compare import (
    ComparisonMeasure,
    DifferingExample,
    MedianDurations,
    ShareInterval,
)
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.top.figures import ModelLoad, ServerLoad


class SmokeDocument(TypedDict):
    """The outcome of each check."""

    url: str
    passed: int
    failed: int
    skipped: int
    checks: list[SmokeOutcome]


class TopDocument(TypedDict):
    """One for each interval; with a `problem` without figures."""

    time: str  # ISO 8601
    url: str
    release: str | None
    problem: str | None
    interval_seconds: NotRequired[float]  # that the figures are of
    server: NotRequired[ServerLoad]
    models: NotRequired[list[ModelLoad]]


class LoadRunFolder(TypedDict):
    """The run's folder and its summary.json."""

    folder: str


class LoadReportDocument(TypedDict):
    """The files."""

    run: str
    against: str | None
    report: str
    requests: str | None  # with `--csv`


class MockDocument(TypedDict):
    """Once it listens, also without `--json`."""

    grpc: str


class RolloutDocument(TypedDict):
    """The state of a rollout."""

    rollout: int
    release: str | None  # the candidate
    stable: str | None
    phase: str  # starting, stepping, holding, rolled_back or promoted
    step: int | None  # from 0; null before the first
    steps_percent: list[float]  # of the users
    share_percent: float  # of the users that the candidate has now
    since_unix_seconds: float | None  # of the step, or of the end
    status: str | None  # the latest decision of the judge
    reason: str
    figures: dict[str, Any]  # that the latest decision rests on
    moved: bool  # the gateway has moved the users
    closed: bool  # nothing is left to do
    controller: str | None  # its process
    pending_commands: list[str]


class RolloutStatusDocument(RolloutDocument):
    """The state of a rollout, and the report."""

    report: str | None  # with `--output`


class DifferencesDocument(TypedDict):
    """The differences that the shadow of a rollout found."""

    rollout: int
    comparisons: list[ComparisonEntry]  # one for each model; A is stable
    copies: ShadowCopies
    report: str | None  # with `--output`


class ShadowCopies(TypedDict):
    """The copies of requests that the shadow made."""

    total: int
    compared: int
    skipped: list[SkippedCopies]


class SkippedCopies(TypedDict):
    """Copies that were not compared."""

    reason: str
    count: int


class ComparisonEntry(TypedDict):
    """A comparison of versions A and B; texts are null without `--show-prompts`."""

    a: str
    b: str
    model: str
    task: str
    questions: int
    noise: ShareInterval  # questions that A answers in two ways
    different: ShareInterval  # questions that A and B answer differently
    evidence: float  # an e-value
    limit: float  # evidence from which B counts as different
    tolerated: float  # share of the questions that may differ
    figures: list[ComparisonMeasure]
    durations: list[MedianDurations]
    examples: list[DifferingExample]
    failed: list[str]
    differs: bool  # `evidence` reaches `limit`
    verdict: str


class CompareDocument(ComparisonEntry):
    """A comparison of versions A and B, and the report."""

    report: str | None  # with `--output`

# SPDX-License-Identifier: Apache-2.0
"""Documents of verbs that write a project, build its engines and check its repository."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from tritonctl.checks.findings import Severity
from tritonctl.doctor.findings import DoctorFinding, GpuReport
from tritonctl.engines.builds.contract import EvaluationResult, Proof
from tritonctl.store.files import IntegrityFinding


class QuickstartDocument(TypedDict):
    """The project, the server and its answers."""

    project: str  # folder
    grpc: str  # address
    answers: list[QuickstartAnswer]


class QuickstartAnswer(TypedDict):
    """A prompt and the answer to it."""

    text_input: str
    text_output: str


class InitDocument(TypedDict):
    """The written files and the reasons for their content; a commented example has only `file`."""

    file: str  # tritonctl.yaml
    written: NotRequired[list[str]]
    model: NotRequired[str]
    reasons: NotRequired[list[str]]
    next: NotRequired[str]  # commands


class WrittenDocument(TypedDict):
    """The written files or folders, and the next commands."""

    written: list[str]
    next: list[str]  # commands


class FetchDocument(TypedDict):
    """One for each model: its checkpoint on this machine."""

    model: str | None  # of the project; null for a name of the hub
    checkpoint: str  # OWNER/NAME, or a folder
    revision: NotRequired[str]  # of a model of the hub
    commit: NotRequired[str]  # of a model of the hub
    folder: str
    downloaded_bytes: int  # by this command


class DoctorDocument(TypedDict):
    """The parts that this machine, or with `--on kubernetes` the cluster, has and lacks."""

    healthy: bool
    summary: str
    findings: list[DoctorFinding]
    gpus: list[GpuReport]  # empty for a cluster


class PlanDocument(TypedDict):
    """Estimates of each engine."""

    models: list[ModelEstimates]
    without_figures: list[str]  # models that can be built, but not estimated
    refused: dict[str, RefusedModel]  # models that cannot be built


class ModelEstimates(TypedDict):
    """The estimates of a model's engine; null is unknown."""

    model: str
    builder: str
    precision: str
    parameters: int | None
    weights_bytes: int
    files_bytes: int  # of the engine on disk
    kv_bytes_per_token: float
    activations_bytes: int
    build_disk_bytes: int  # at most, during the build
    build_memory_bytes: int | None  # of the host, during the build
    build_seconds: float | None
    build_seconds_from: str  # the earlier build that the estimate is based on
    built_bytes: int | None  # real size of the engine; null: not built
    fits: list[PlannedFit]
    notes: list[str]


class PlannedFit(TypedDict):
    """How an engine fits a device."""

    device: str
    device_memory_bytes: int
    devices: int  # needed at once
    refused: str | None  # reason other than memory why it cannot run there
    needed_bytes: int  # per device
    usable_bytes: int  # per device
    fits: bool
    batch: int  # requested
    length_tokens: int | None  # requested; null: tensors of fixed sizes
    max_batch: int  # that fits with `length_tokens`
    max_length_tokens: int | None  # that fits with `batch`; null: tensors of fixed sizes


class RefusedModel(TypedDict):
    """Why a model cannot be built."""

    problem: str
    remedy: str


class BuildDocument(TypedDict):
    """One for each engine."""

    model: str
    stage: str | None
    built: bool  # false: it was up to date
    folder: str
    fingerprint: str
    size_bytes: int
    durations_seconds: dict[str, float]  # by step of the build
    evaluation: EvaluationResult | None
    proof: Proof | None


class BuildStageDocument(TypedDict):
    """With `--dry-run`: one for each stage."""

    model: str
    stage: str
    runner: str
    required: bool  # false: it is up to date
    folder: str
    commands: list[list[str]]


class RenderDocument(TypedDict):
    """The models of the repository: rendered, as before, and removed."""

    repository: str  # folder
    changed: list[str]
    unchanged: list[str]
    removed: list[str]


class CheckDocument(TypedDict):
    """The findings; `--format json` prints the same over several lines."""

    models: int
    counts: dict[str, int]  # by severity
    findings: list[CheckEntry]
    omitted: list[OmittedEntry]  # counted only, as `counts` does, too


class OmittedEntry(TypedDict):
    """Findings of a rule in a model beyond the first 1,000."""

    model: str  # path of the model's folder
    rule: str
    severity: Severity
    count: int


class CheckEntry(TypedDict):
    """A mistake in a file, or on a running server."""

    path: str  # of the file, or the URL of the server
    line: int  # from 1; 0 for a server
    column: int  # from 1
    end: int  # column after the last one
    text: str  # the line
    rule: str
    severity: Severity
    message: str
    reason: str  # why it is a mistake
    fix: str
    fixable: bool  # `--fix` applies it


class ExplainedRulesDocument(TypedDict):
    """With `--explain`: the rules."""

    rules: list[ExplainedRule]


class ExplainedRule(TypedDict):
    """A rule and its page."""

    rule: str
    name: str
    severity: str
    summary: str
    reason: str
    text: str


class GraphDocument(TypedDict):
    """An ensemble as a graph."""

    model: str
    backend: str | None
    max_batch_size: int | None
    decoupled: bool | None
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    findings: list[GraphFinding]


class GraphNode(TypedDict):
    """A step, the request or the response."""

    name: str
    kind: str
    model: str | None  # of a step
    backend: str | None
    decoupled: bool | None
    broken: list[str]  # rules
    inner: GraphDocument | None  # of a step that is itself an ensemble


class GraphEdge(TypedDict):
    """A tensor from one node to another."""

    tensor: str
    source: GraphEnd
    target: GraphEnd
    optional: bool
    broken: list[str]  # rules


class GraphEnd(TypedDict):
    """A tensor as a node declares it."""

    node: str
    name: str | None
    data_type: str | None
    dims: list[int] | None
    batched: bool | None


class GraphFinding(TypedDict):
    """A mistake in the graph."""

    rule: str
    message: str


class ArtefactsDocument(TypedDict):
    """Every artefact of the project."""

    artefacts: list[ArtefactEntry]


class ArtefactEntry(TypedDict):
    """A built engine, or a stage of one."""

    model: str
    artefact: str  # MODEL/BEGINNING of the fingerprint
    folder: str
    fingerprint: str | None
    builder: str | None
    precision: str | None
    stage: str | None
    source: str | None  # fingerprint of the previous stage
    size_bytes: int
    built_unix_seconds: float | None
    problem: str | None  # why its manifest cannot be read
    in_use: bool
    profiles: list[str | None]  # that need it; null: the project without one
    repositories: list[str]
    source_of: list[str]
    unknown_reasons: list[str]  # why it is unknown whether it is in use


class ArtefactDiffDocument(TypedDict):
    """The fields that differ."""

    old: str
    new: str
    differences: list[ArtefactDifference]
    explanation: str | None  # of a difference that no field shows


class ArtefactDifference(TypedDict):
    """A field of both manifests."""

    field: str
    old: Any
    new: Any
    is_path: bool  # the same files elsewhere make the same engine
    change: float | None  # new minus old


class ArtefactVerificationDocument(TypedDict):
    """The deviations from the manifest, by artefact."""

    artefacts: dict[str, list[IntegrityFinding]]


class ArtefactPruneDocument(TypedDict):
    """The removed artefacts; with `--shared` only the first two fields."""

    dry_run: bool
    removed: list[str]
    leftovers: NotRequired[list[str]]  # folders of killed commands
    retained: NotRequired[list[str]]
    being_built: NotRequired[list[str]]
    freed_bytes: NotRequired[int]


class BundleDocument(TypedDict):
    """The written folder."""

    folder: str
    wheels: int
    images: list[str]  # to transfer as well
    size_bytes: int


class CertsDocument(TypedDict):
    """The written certificates."""

    folder: str
    tls: dict[str, str]  # `server.tls` for the project file


class ComposeDocument(TypedDict):
    """The files of a deployment: written, as before, and removed."""

    folder: str
    profile: str  # of Docker Compose
    written: list[str]
    unchanged: list[str]
    removed: list[str]


class ChartDocument(TypedDict):
    """The files of a chart, or of manifests: written, as before, and removed."""

    folder: str
    release: str
    name: str  # of the installation
    written: list[str]
    unchanged: list[str]
    removed: list[str]

# SPDX-License-Identifier: Apache-2.0
"""Documents of verbs that publish, serve and ask."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from tritonctl.releases.manifest import ReleasedModel, SmokeTestSummary
from tritonctl.runtimes.docker.openai_url import OpenAiApi
from tritonctl.store.files import IntegrityFinding
from tritonctl.supervision.restarts import Crash


class PublishDocument(TypedDict):
    """The release."""

    release: str  # NUMBER-HASH
    number: int
    folder: str
    published: bool  # false: a release with this content existed
    parent: str | None
    models: list[ReleasedModel]
    size_bytes: int
    linked: int  # files that are hard links to the engines
    copied: list[str]  # files of engines that could not be linked
    smoke: SmokeTestSummary
    warnings: int  # of `check`
    image: ImageEntry | None  # with `--oci-archive`


class ImageEntry(TypedDict):
    """An OCI image in a file."""

    path: str
    digest: str  # that pods name
    size_bytes: int
    layers: list[ImageLayerEntry]


class ImageLayerEntry(TypedDict):
    """A layer of an image."""

    digest: str
    size_bytes: int


class ReleaseImageDocument(TypedDict):
    """The image of a release."""

    release: str
    image: ImageEntry


class ReleasesDocument(TypedDict):
    """Every release of the project."""

    releases: list[ReleaseEntry]


class ReleaseEntry(TypedDict):
    """A release; null is unknown, as its manifest cannot be read."""

    release: str
    number: int
    folder: str
    created: str | None  # ISO 8601
    parent: str | None
    size_bytes: int | None
    smoke: str | None  # passed, or not run
    live: bool  # the running server has it
    problem: str | None  # why the manifest cannot be read


class ReleaseDiffDocument(TypedDict):
    """How two releases differ."""

    old: str
    new: str
    breaking: bool  # a client of the old one may fail with the new one
    differences: list[ReleaseDiffEntry]


class ReleaseDiffEntry(TypedDict):
    """A field of both releases."""

    section: str
    field: str
    old: Any
    new: Any
    breaking: bool
    change: float | None  # new minus old


class ReleaseVerificationDocument(TypedDict):
    """The deviations from the manifest, by release."""

    releases: dict[str, list[IntegrityFinding]]


class ReleasePruneDocument(TypedDict):
    """The removed releases, or with `--dry-run` those to remove."""

    dry_run: bool
    removed: list[str]
    leftovers: list[str]  # folders of killed commands
    retained: list[str]
    being_built: list[str]
    freed_bytes: int  # hard links take none


class UpDocument(TypedDict):
    """The server."""

    started: bool  # false: it ran already
    pid: int | None
    container: str | None
    grpc: str
    http: str
    metrics: str
    frontend: str | None  # URL of the OpenAI API
    gateway: str | None  # address of the Envoy before embedded servers
    models: list[str]
    release: str | None  # null: the repository rendered last


class ServerAddresses(TypedDict):
    """Where a server listens."""

    pid: int | None
    grpc: str
    http: str
    metrics: str
    readiness: str | None  # URL of an embedded server


class StatusDocument(ServerAddresses):
    """The health of the server, or of the first of several."""

    ready: bool  # every model of every server
    live: bool
    release: str | None
    models: dict[str, str]  # state by model
    model_backends: dict[str, ModelBackend]
    frontend: OpenAiApi | None
    gateway: GatewayStatus | None  # the Envoy before embedded servers
    standby: StandbyServer | None  # a candidate of a rollout, or the previous version kept warm
    crashes: list[Crash]
    servers: list[ServerEntry]


class ModelBackend(TypedDict):
    """The backend of a model."""

    backend: str
    instances: str  # such as 2 CPU; `-` for an ensemble


class GatewayStatus(TypedDict):
    """The Envoy; null: it has ended."""

    url: str | None
    metrics: str | None
    pid: int | None
    ready: bool


class StandbyServer(ServerAddresses):
    """The other slot."""

    slot: str
    release: str | None
    ready: bool
    share_percent: float | None  # of the traffic


class ServerEntry(ServerAddresses):
    """One of several servers."""

    ready: bool
    container: str | None


class ClusterReadiness(TypedDict):
    """With `--on kubernetes`: the installation."""

    ready: bool
    releases: list[str]  # of the ready servers


class LogLine(TypedDict):
    """One for each line of the log."""

    line: str


class FrontendDocument(TypedDict):
    """Once it listens; lines of the access log follow."""

    url: str
    servers: list[str]


class DownDocument(TypedDict):
    """The stopped processes."""

    stopped: bool
    pid: int | None
    gateway: bool  # an Envoy was stopped


class EmbeddingLine(TypedDict):
    """One for each line of input, also without `--json`; no `schema`."""

    index: int  # of the input line, from 0
    id: NotRequired[Any]  # the input line's own
    embedding: list[float] | str  # text: base64, with `--encoding base64`
    num_input_tokens: NotRequired[int]  # of a text
    truncated: NotRequired[bool]  # of a text


class FailedLine(TypedDict):
    """With `--on-error keep`: a line without an answer; no `schema`."""

    index: int
    id: NotRequired[Any]
    error: str


class LabelsLine(TypedDict):
    """One for each line of input, also without `--json`; no `schema`."""

    index: int  # of the input line, from 0
    id: NotRequired[Any]  # the input line's own
    labels: list[ScoredLabel]  # the best first
    num_input_tokens: NotRequired[int]  # of a text
    truncated: NotRequired[bool]  # of a text


class ScoredLabel(TypedDict):
    """A label of an item."""

    label: str
    score: float


class EntitiesLine(TypedDict):
    """The same of a model that finds entities."""

    index: int
    id: NotRequired[Any]
    entities: list[FoundEntity]
    num_input_tokens: int
    truncated: bool


class FoundEntity(TypedDict):
    """An entity in a text."""

    label: str
    score: float
    start: int  # character, from 0
    end: int  # character after the last one
    text: str


class ScoreLine(TypedDict):
    """One for each line of input, also without `--json`; no `schema`."""

    index: int  # of the input line, from 0
    id: NotRequired[Any]  # the input line's own
    score: float
    num_input_tokens: int
    truncated: bool


class RankedLine(TypedDict):
    """The same of a line with a query and its documents."""

    index: int
    id: NotRequired[Any]
    results: list[ScoreLine]  # the best first; `index` of the document


class BulkDocument(TypedDict):
    """With `--json` and `--output`: about the file."""

    output: str
    lines: int  # in the file
    failed: int
    truncated: int
    num_input_tokens: int
    new_lines: int  # by this run
    duration_seconds: float  # of this run


class InferDocument(TypedDict):
    """The outputs by name: nested lists, or with `--output` the file of each."""

    outputs: dict[str, Any]

# SPDX-License-Identifier: Apache-2.0
"""The documents of each verb, for the reference and for tests; no verb imports this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from tritonctl.cli.documents import building, measuring, serving
from tritonctl.loadtest.analysis.compare import LoadComparison
from tritonctl.loadtest.analysis.summary import Summary
from tritonctl.protocol.generation import Generation
from tritonctl.runtimes.kubernetes.status import InstallationStatus
from tritonctl.runtimes.release_switch import ReleaseSwitch
from tritonctl.runtimes.reload import ReloadResult


class ErrorDocument(TypedDict):
    """A failure without results; with results, its fields are added to their document."""

    error: str  # exception class
    exit_code: int  # of the process
    problem: str  # one-line cause, with its location
    remedy: str  # next command or fix
    details: str | None  # further output, such as an excerpt of a log


@dataclass(frozen=True)
class DocumentForm:
    """A form that a verb prints: the fields of `parts` together.

    parts: TypedDicts, dataclasses or pydantic models; the first one's docstring describes the
    document. has_schema: False for lines of data, which have no `schema`.
    """

    parts: tuple[type, ...]
    has_schema: bool = True


def _documents(*types: type) -> tuple[DocumentForm, ...]:
    return tuple(DocumentForm((each,)) for each in types)


def _lines(*types: type) -> tuple[DocumentForm, ...]:
    return tuple(DocumentForm((each,), has_schema=False) for each in types)


_ROLLOUT = _documents(measuring.RolloutDocument)
# By verb: its forms. A verb prints one of them, the first unless options say otherwise.
DOCUMENTS: dict[str, tuple[DocumentForm, ...]] = {
    "error": _documents(ErrorDocument),
    "quickstart": _documents(building.QuickstartDocument),
    "init": _documents(building.InitDocument),
    "new example": _documents(building.WrittenDocument),
    "new step": _documents(building.WrittenDocument),
    "new ensemble": _documents(building.WrittenDocument),
    "fetch": _documents(building.FetchDocument),
    "doctor": _documents(building.DoctorDocument),
    "plan": _documents(building.PlanDocument),
    "build": _documents(building.BuildDocument, building.BuildStageDocument),
    "render": _documents(building.RenderDocument),
    "check": _documents(building.CheckDocument, building.ExplainedRulesDocument),
    "graph": _documents(building.GraphDocument),
    "artefacts list": _documents(building.ArtefactsDocument),
    "artefacts diff": _documents(building.ArtefactDiffDocument),
    "artefacts verify": _documents(building.ArtefactVerificationDocument),
    "artefacts prune": _documents(building.ArtefactPruneDocument),
    "releases publish": _documents(serving.PublishDocument),
    "releases rollback": _documents(ReleaseSwitch),
    "releases list": _documents(serving.ReleasesDocument),
    "releases diff": _documents(serving.ReleaseDiffDocument),
    "releases verify": _documents(serving.ReleaseVerificationDocument),
    "releases prune": _documents(serving.ReleasePruneDocument),
    "releases image": _documents(serving.ReleaseImageDocument),
    "up": _documents(serving.UpDocument),
    "reload": _documents(ReloadResult),
    "status": (
        *_documents(serving.StatusDocument),
        DocumentForm((serving.ClusterReadiness, InstallationStatus)),
    ),
    "logs": _documents(serving.LogLine),
    "frontend": _documents(serving.FrontendDocument),
    "down": _documents(serving.DownDocument),
    "generate": _documents(Generation),
    "chat": _documents(Generation),
    "embed": (
        *_lines(serving.EmbeddingLine, serving.FailedLine),
        *_documents(serving.BulkDocument),
    ),
    "classify": (
        *_lines(serving.LabelsLine, serving.EntitiesLine, serving.FailedLine),
        *_documents(serving.BulkDocument),
    ),
    "rerank": (
        *_lines(serving.ScoreLine, serving.RankedLine, serving.FailedLine),
        *_documents(serving.BulkDocument),
    ),
    "infer": _documents(serving.InferDocument),
    "smoke": _documents(measuring.SmokeDocument),
    "top": _documents(measuring.TopDocument),
    "loadtest run": (DocumentForm((measuring.LoadRunFolder, Summary)),),
    "loadtest compare": _documents(LoadComparison),
    "loadtest report": _documents(measuring.LoadReportDocument),
    "loadtest mock": _documents(measuring.MockDocument),
    "rollout start": _ROLLOUT,
    "rollout status": _documents(measuring.RolloutStatusDocument),
    "rollout watch": _ROLLOUT,
    "rollout pause": _ROLLOUT,
    "rollout resume": _ROLLOUT,
    "rollout promote": _ROLLOUT,
    "rollout abort": _ROLLOUT,
    "rollout differences": _documents(measuring.DifferencesDocument),
    "rollout compare": _documents(measuring.CompareDocument),
    "bundle": _documents(building.BundleDocument),
    "certs": _documents(building.CertsDocument),
    "deploy compose": _documents(building.ComposeDocument),
    "deploy kubernetes": _documents(building.ChartDocument),
}
# Verbs that print a file as it is stored, in the format of that file.
STORED_FILES = {
    "schema": (
        "A [JSON schema](https://json-schema.org): that of `tritonctl.yaml`, or with `release` "
        "that of a release's `release.json`; it has no `schema`."
    ),
    "artefacts show": "The artefact's `manifest.json`.",
    "tune": (
        "The session's `report.json`, and `diff` (the change that `--apply` writes), `applied` and "
        "`report` (the HTML file). `best.met` is the highest rate within the SLO, in requests per "
        "second, and `best.settings` has the settings; with exit code 9 also the error's fields."
    ),
    "loadtest capacity": (
        "The search's `capacity.json`: `rate` is the highest rate within the SLO, `missed_at` the "
        "lowest beyond it, both in requests per second, or null; `trials` has the "
        "runs. With exit codes 7, 8, 9 and 130 also the error's fields."
    ),
    "releases show": (
        "The release's `release.json`; `tritonctl schema release` is its JSON schema."
    ),
}
# The names of these documents are older than the verbs: they are stored in files.
STORED_NAMES = {
    "artefacts show": "tritonctl.manifest/1",
    "releases show": "tritonctl.release/1",
    "tune": "tritonctl/tuning/v1",
    "loadtest run": "tritonctl/loadsummary/v1",
    "loadtest capacity": "tritonctl/capacity/v1",
}

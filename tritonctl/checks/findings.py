# SPDX-License-Identifier: Apache-2.0
"""Hits of rules, and the findings and reports made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from tritonctl.checks.repository import Model
from tritonctl.checks.source_span import SourceText, Span

Severity = Literal["error", "warning", "advice"]
# Most serious first: "error": a server refuses it or answers wrongly; "warning": it works, but not
# as intended; "advice": it could be better.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "advice")
_MAX_TEXT_CHARS = 2_000


class Edit(NamedTuple):
    """A fix that replaces the text of a span with `text`."""

    span: Span
    text: str


class Hit(NamedTuple):
    """A mistake that a rule reports."""

    message: str
    fix: str  # the remedy in words
    span: Span | None = None
    source: SourceText | None = None  # of the span; None: config.pbtxt
    relative_path: str = (
        ""  # without a span: the path below the model's folder, such as "1/model.py"
    )
    # The remedy for `--fix`, if what was meant is certain; `proven_edits` proves it.
    edits: tuple[Edit, ...] = ()
    # Set by rules about all models together; None: the repository's own folder.
    model: Model | None = None
    reason: str | None = None  # overrides the rule's reason
    omitted: int = 0  # stands for so many further hits of the rule in the model, and nothing else


@dataclass(frozen=True)
class CheckFinding:
    """A mistake in a file, or on a running server."""

    path: str  # of the file, or the URL of the server
    line: int  # from 1; 1 for a whole file, 0 for a server
    column: int  # from 1; 1 for a whole file
    end: int  # exclusive, on the same line
    text: str  # the offending line; "" for a whole file
    rule: str
    severity: Severity
    message: str
    reason: str
    fix: str
    edits: tuple[Edit, ...] = ()

    @property
    def place(self) -> str:
        """The location as compilers write it, so that editors can open it; a server has no line."""
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path

    def as_record(self) -> dict[str, Any]:
        """Return the finding as plain data; a very long line starts at the finding's column."""
        record = asdict(self)
        if len(self.text) > _MAX_TEXT_CHARS:
            record["text"] = self.text[self.column - 1 :][:_MAX_TEXT_CHARS]
        record["fixable"] = bool(record.pop("edits"))
        return record


@dataclass(frozen=True)
class OmittedFindings:
    """Findings of a rule in a model that are counted only, because there are too many."""

    model: str  # path of the model's folder
    rule: str
    severity: Severity
    count: int


@dataclass(frozen=True)
class CheckReport:
    """All findings in the order of the files."""

    findings: tuple[CheckFinding, ...]
    models: int  # number of models
    sources: Mapping[str, SourceText]  # the files that were read, by path
    omitted: tuple[OmittedFindings, ...] = ()

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings) + sum(
            omitted.count for omitted in self.omitted if omitted.severity == severity
        )

    @property
    def failed(self) -> bool:
        """Whether the report has an error."""
        return self.count("error") > 0

    def as_record(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "models": self.models,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.as_record() for finding in self.findings],
            "omitted": [asdict(omitted) for omitted in self.omitted],
        }


def merge_reports(reports: Sequence[CheckReport]) -> CheckReport:
    """Merge the reports of several repositories."""
    return CheckReport(
        findings=tuple(finding for report in reports for finding in report.findings),
        models=sum(report.models for report in reports),
        sources={name: source for report in reports for name, source in report.sources.items()},
        omitted=tuple(omitted for report in reports for omitted in report.omitted),
    )

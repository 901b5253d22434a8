# SPDX-License-Identifier: Apache-2.0
"""What rules report, and how the user sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from tritonctl.checks.places import Source, Span
from tritonctl.checks.repository import Model

Severity = Literal["error", "warning", "advice"]
# Most serious first: "error": a server refuses it or answers wrongly; "warning": it works, but not
# as intended; "advice": it could be better.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "advice")
_LONGEST_TEXT = 2_000


class Edit(NamedTuple):
    """A safe fix: the span's text becomes `text`."""

    span: Span
    text: str


class Hit(NamedTuple):
    """What a rule found. `span`: in the model's config.pbtxt, or in `source` where that is given.

    place: without a span, what it is about, below the model's folder: "1/model.py", "" for itself.

    fix: what to do about it, in words; edits: the same for `--fix`, where it is safe.

    model: whose it is, of a rule about all models; None: the repository's own folder.

    why: the reason, where it is another than the rule's in general.
    """

    message: str
    fix: str
    span: Span | None = None
    source: Source | None = None
    place: str = ""
    edits: tuple[Edit, ...] = ()
    model: Model | None = None
    why: str | None = None


@dataclass(frozen=True)
class Finding:
    """A mistake in a file. Lines and columns count from 1; `end` is exclusive, on the same line.

    `text` is the offending line. Places of whole files have line 1, column 1 and no text; line 0
    means that it is about a running server, whose URL is the path.
    """

    path: str
    line: int
    column: int
    end: int
    text: str
    rule: str
    severity: Severity
    message: str
    why: str
    fix: str
    edits: tuple[Edit, ...] = ()

    @property
    def place(self) -> str:
        """As compilers write it, so that editors can open it; a server has no line."""
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path

    def as_record(self) -> dict[str, Any]:
        """The finding as plain data; of a very long line only what begins where it points."""
        record = asdict(self)
        if len(self.text) > _LONGEST_TEXT:
            record["text"] = self.text[self.column - 1 :][:_LONGEST_TEXT]
        record["fixable"] = bool(record.pop("edits"))
        return record


@dataclass(frozen=True)
class Report:
    """Everything found, in the order of the files; `sources` are what was read, by path."""

    findings: tuple[Finding, ...]
    models: int
    sources: Mapping[str, Source]

    def count(self, severity: Severity) -> int:
        """How many findings of that severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return self.count("error") > 0

    def as_record(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "models": self.models,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.as_record() for finding in self.findings],
        }


def merged(reports: Sequence[Report]) -> Report:
    """Several repositories' reports as one."""
    return Report(
        findings=tuple(finding for report in reports for finding in report.findings),
        models=sum(report.models for report in reports),
        sources={name: source for report in reports for name, source in report.sources.items()},
    )

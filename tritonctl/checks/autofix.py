# SPDX-License-Identifier: Apache-2.0
"""`--fix`: makes the edits that rules call safe."""

from __future__ import annotations

from pathlib import Path

from tritonctl.checks.findings import Edit, Report
from tritonctl.host.files import write_atomically


def apply_fixes(report: Report) -> int:
    """Write every file that has edits; returns how many findings were fixed.

    Where two edits overlap, the first is made. Raises HostError for a file that cannot be written.
    """
    edits_of: dict[str, list[Edit]] = {}
    for finding in report.findings:
        edits_of.setdefault(finding.path, []).extend(finding.edits)
    fixed = 0
    for name, source in report.sources.items():
        chosen = _without_overlaps(edits_of.get(name, []))
        if chosen and source.is_utf8:
            write_atomically(Path(name), _edited(source.text, chosen))
            fixed += len(chosen)
    return fixed


def _without_overlaps(edits: list[Edit]) -> list[Edit]:
    chosen: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.span.start, edit.span.end)):
        if not chosen or edit.span.start >= chosen[-1].span.end:
            chosen.append(edit)
    return chosen


def _edited(text: str, edits: list[Edit]) -> str:
    pieces, at = [], 0
    for edit in edits:
        pieces += [text[at : edit.span.start], edit.text]
        at = edit.span.end
    return "".join([*pieces, text[at:]])

# SPDX-License-Identifier: Apache-2.0
"""A report as text, JSON, GitHub's annotations or SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from tritonctl.checks.examples.files import Example, File
from tritonctl.checks.findings import SEVERITIES, Finding, Report
from tritonctl.checks.live.rules import LIVE_RULES, LiveRule
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import RULES

# Of a line of a file, in characters, and how many of them before what is meant.
_WIDEST, _BEFORE = 160, 60
_LEVELS = {"error": "error", "warning": "warning", "advice": "note"}
_GITHUB = {"error": "error", "warning": "warning", "advice": "notice"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(report: Report) -> str:
    """For people: place, message, the line with what is meant underlined, reason, remedy."""
    blocks = [_block(finding) for finding in report.findings]
    return "\n\n".join([*blocks, summary(report)])


def _block(finding: Finding) -> str:
    head = f"{finding.place} {finding.rule} {finding.severity}: {finding.message}"
    lines = [_plain(head), *_underlined(finding)]
    return "\n".join([*lines, f"  why: {_plain(finding.why)}", f"  fix: {_plain(finding.fix)}"])


def _underlined(finding: Finding) -> Iterator[str]:
    """The line and what is meant in it; of a very long one what is around that."""
    if not finding.text:
        return
    first = 0 if len(finding.text) <= _WIDEST else max(finding.column - 1 - _BEFORE, 0)
    text = finding.text[first : first + _WIDEST]
    at = finding.column - 1 - first
    marked = max(min(finding.end - finding.column, len(text) - at), 1)
    indent = "".join("\t" if c == "\t" else " " for c in text[:at])
    left = "…" if first else ""
    right = "…" if first + _WIDEST < len(finding.text) else ""
    # Of the same width, so that what is meant stays underlined; never a terminal's commands.
    shown = "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in text)
    yield f"    {left}{shown}{right}"
    yield f"    {' ' * len(left)}{indent}{'^' * marked}"


def _plain(text: str) -> str:
    """One line without control characters: names of files may have them."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def summary(report: Report) -> str:
    """Counts of models and findings, in a sentence."""
    models = f"{report.models} model{'s' if report.models != 1 else ''}"
    counts = [(report.count(severity), severity) for severity in SEVERITIES]
    parts = [f"{n} {name}{'s' if n != 1 and name != 'advice' else ''}" for n, name in counts if n]
    return f"{models} checked: {', '.join(parts) if parts else 'nothing found'}"


def explained(rule: Rule | LiveRule) -> str:
    """A rule's own page, as text."""
    parts = [f"{rule.id} {rule.name} ({rule.severity})", f"Looks for {rule.summary}.", rule.why]
    if isinstance(rule, LiveRule):
        if rule.on_loopback:
            parts += [f"Where only this machine reaches the port it is {rule.on_loopback}."]
        parts += [f"Of `tritonctl check --url`. To leave it out: --ignore {rule.id}."]
        return "\n\n".join(parts) + "\n"
    parts += [f"{title}:\n\n{_shown(example)}" for title, example in differences(rule)]
    parts += [f"Reported by users in {', '.join(rule.answers)}."] if rule.answers else []
    parts += [f"To leave it out: --ignore {rule.id}, or `# tritonctl: ignore[{rule.id}]` there."]
    return "\n\n".join(parts) + "\n"


def rule_record(rule: Rule | LiveRule) -> dict[str, str]:
    """A rule as plain data; `text` is its own page."""
    return {
        "rule": rule.id,
        "name": rule.name,
        "severity": rule.severity,
        "summary": rule.summary,
        "why": rule.why,
        "text": explained(rule),
    }


def differences(rule: Rule) -> list[tuple[str, Example]]:
    """Its examples by title, of each only the files that the other has not alike."""
    good = {name: text for name, text in rule.good.items() if rule.bad.get(name) != text}
    bad = {name: text for name, text in rule.bad.items() if rule.good.get(name) != text}
    return [("Bad", bad or rule.bad), ("Good", good or rule.good)]


def _shown(example: Example) -> str:
    lines = []
    for name, content in example.items():
        text = content if isinstance(content, str) else described(content)
        lines += [f"  {name}", *(f"    {line}" for line in text.splitlines())]
    return "\n".join(lines)


def described(file: File) -> str:
    """A file of an example that is not shown as text."""
    if file.link is not None:
        return f"(a symbolic link to {file.link})"
    mode = f", mode {file.mode:o}" if file.mode is not None else ""
    return f"({len(file.content)} bytes{mode})"


def as_json(report: Report) -> str:
    """The report as JSON."""
    return json.dumps(report.as_record(), indent=2, ensure_ascii=False)


def as_github(report: Report) -> str:
    """Workflow commands, which GitHub shows at the lines of a pull request."""
    return "\n".join(_command(finding) for finding in report.findings)


def _command(finding: Finding) -> str:
    place = f"file={_property(finding.path)},line={finding.line},col={finding.column},"
    title = f"title={_property(finding.rule)}"
    text = f"{finding.message} ({finding.fix})"
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{_GITHUB[finding.severity]} {place if finding.line else ''}{title}::{escaped}"


def _property(text: str) -> str:
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(character, code)
    return text


def as_sarif(report: Report) -> str:
    """https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html"""
    used = sorted({finding.rule for finding in report.findings})
    driver = {"name": "tritonctl check", "rules": [_sarif_rule(named(name)) for name in used]}
    results = [_result(finding, used.index(finding.rule)) for finding in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def named(name: str) -> Rule | LiveRule:
    """The rule of that id, of those about files or of those about a running server."""
    return RULES[name] if name in RULES else LIVE_RULES[name]


def _sarif_rule(rule: Rule | LiveRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, number: int) -> dict[str, Any]:
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endColumn": max(finding.end, finding.column),
    }
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(finding.path, safe="/:")}}
    if finding.line:
        place["region"] = region
    return {
        "ruleId": finding.rule,
        "ruleIndex": number,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. {finding.fix}"},
        "locations": [{"physicalLocation": place}],
    }


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}

# SPDX-License-Identifier: Apache-2.0
"""Render a report as text, JSON, GitHub annotations or SARIF 2.1.0."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from tritonctl.checks.examples.files import Example, ExampleFile
from tritonctl.checks.findings import SEVERITIES, CheckFinding, CheckReport
from tritonctl.checks.live.rules import LIVE_RULES, LiveRule
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import RULES

# Maximum length of a displayed line, and of its part before the marked text, in characters.
_MAX_LINE_CHARS, _LEADING_CHARS = 160, 60
_LEVELS = {"error": "error", "warning": "warning", "advice": "note"}
_GITHUB = {"error": "error", "warning": "warning", "advice": "notice"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(report: CheckReport) -> str:
    """Render location, message, the line with the mistake underlined, reason and remedy."""
    blocks = [_block(finding) for finding in report.findings]
    blocks += ["\n".join(_omitted_lines(report))] if report.omitted else []
    return "\n\n".join([*blocks, summary(report)])


def _omitted_lines(report: CheckReport) -> Iterator[str]:
    for entry in report.omitted:
        yield _printable(
            f"{entry.model} {entry.rule} {entry.severity}: {entry.count:,} more are left out"
        )


def _block(finding: CheckFinding) -> str:
    head = f"{finding.place} {finding.rule} {finding.severity}: {finding.message}"
    lines = [_printable(head), *_underlined(finding)]
    return "\n".join(
        [*lines, f"  why: {_printable(finding.reason)}", f"  fix: {_printable(finding.fix)}"]
    )


def _underlined(finding: CheckFinding) -> Iterator[str]:
    """Yield the line and its underline; for a very long line, only the part around the mistake."""
    if not finding.text:
        return
    first = (
        0 if len(finding.text) <= _MAX_LINE_CHARS else max(finding.column - 1 - _LEADING_CHARS, 0)
    )
    text = finding.text[first : first + _MAX_LINE_CHARS]
    mark_start = finding.column - 1 - first
    marked = max(min(finding.end - finding.column, len(text) - mark_start), 1)
    indent = "".join("\t" if c == "\t" else " " for c in text[:mark_start])
    leading_mark = "…" if first else ""
    trailing_mark = "…" if first + _MAX_LINE_CHARS < len(finding.text) else ""
    # Replacements keep the width, so that the underline fits, and remove terminal commands.
    printable = "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in text)
    yield f"    {leading_mark}{printable}{trailing_mark}"
    yield f"    {' ' * len(leading_mark)}{indent}{'^' * marked}"


def _printable(text: str) -> str:
    """Escape control characters, which file names may contain."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def summary(report: CheckReport) -> str:
    """Return the counts of models and findings as a sentence."""
    models = f"{report.models} model{'s' if report.models != 1 else ''}"
    counts = [(report.count(severity), severity) for severity in SEVERITIES]
    parts = [f"{n:,} {name}{'s' if n != 1 and name != 'advice' else ''}" for n, name in counts if n]
    return f"{models} checked: {', '.join(parts) if parts else 'nothing found'}"


def explain_rule(rule: Rule | LiveRule) -> str:
    """Return a rule's page as text."""
    parts = [f"{rule.id} {rule.name} ({rule.severity})", f"Looks for {rule.summary}.", rule.reason]
    if isinstance(rule, LiveRule):
        if rule.on_loopback:
            parts += [f"If only this machine reaches the port: {rule.on_loopback}."]
        parts += [f"Checked by `tritonctl check --url`. To disable it: --ignore {rule.id}."]
        return "\n\n".join(parts) + "\n"
    parts += [
        f"{title}:\n\n{_example_text(example)}" for title, example in example_differences(rule)
    ]
    parts += [f"Reported by users in {', '.join(rule.user_reports)}."] if rule.user_reports else []
    parts += [f"To disable it: --ignore {rule.id}, or `# tritonctl: ignore[{rule.id}]` there."]
    return "\n\n".join(parts) + "\n"


def rule_record(rule: Rule | LiveRule) -> dict[str, str]:
    """Return a rule as plain data; `text` is its page."""
    return {
        "rule": rule.id,
        "name": rule.name,
        "severity": rule.severity,
        "summary": rule.summary,
        "reason": rule.reason,
        "text": explain_rule(rule),
    }


def example_differences(rule: Rule) -> list[tuple[str, Example]]:
    """Return a rule's examples by title, each with only the files in which they differ."""
    good = {
        name: text for name, text in rule.good_example.items() if rule.bad_example.get(name) != text
    }
    bad = {
        name: text for name, text in rule.bad_example.items() if rule.good_example.get(name) != text
    }
    return [("Bad", bad or rule.bad_example), ("Good", good or rule.good_example)]


def _example_text(example: Example) -> str:
    lines = []
    for name, content in example.items():
        text = content if isinstance(content, str) else describe_file(content)
        lines += [f"  {name}", *(f"    {line}" for line in text.splitlines())]
    return "\n".join(lines)


def describe_file(file: ExampleFile) -> str:
    """Describe a file of an example that is not displayed as text."""
    if file.link is not None:
        return f"(a symbolic link to {file.link})"
    mode = f", mode {file.mode:o}" if file.mode is not None else ""
    return f"({len(file.content)} bytes{mode})"


def as_json(report: CheckReport) -> str:
    """Render the report as JSON."""
    return json.dumps(report.as_record(), indent=2, ensure_ascii=False)


def as_github(report: CheckReport) -> str:
    """Render workflow commands, which GitHub displays at the lines of a pull request."""
    omitted = [f"::{_GITHUB[e.severity]} title={_property(e.rule)}::{_property(e.model)}: "
               f"{e.count} more are left out" for e in report.omitted]  # fmt: skip
    return "\n".join([*map(_command, report.findings), *omitted])


def _command(finding: CheckFinding) -> str:
    place = f"file={_property(finding.path)},line={finding.line},col={finding.column},"
    title = f"title={_property(finding.rule)}"
    text = f"{finding.message} ({finding.fix})"
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    command = f"::{_GITHUB[finding.severity]} {place if finding.line else ''}{title}::{escaped}"
    return _printable(command)


def _property(text: str) -> str:
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(character, code)
    return text


def as_sarif(report: CheckReport) -> str:
    """Render https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html."""
    used = sorted({finding.rule for finding in report.findings})
    driver = {"name": "tritonctl check", "rules": [_sarif_rule(find_rule(name)) for name in used]}
    results = [_result(finding, used.index(finding.rule)) for finding in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    if report.omitted:
        run["invocations"] = [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "warning", "message": {"text": line}}
                    for line in _omitted_lines(report)
                ],
            }
        ]
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def find_rule(name: str) -> Rule | LiveRule:
    """Return the rule with that id, about files or about a running server."""
    return RULES[name] if name in RULES else LIVE_RULES[name]


def _sarif_rule(rule: Rule | LiveRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.reason},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: CheckFinding, number: int) -> dict[str, Any]:
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endColumn": max(finding.end, finding.column),
    }
    place: dict[str, Any] = {
        "artifactLocation": {"uri": quote(os.fsencode(finding.path), safe="/:")}
    }
    if finding.line:
        place["region"] = region
    return {
        "ruleId": finding.rule,
        "ruleIndex": number,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. {finding.fix}"},
        "locations": [{"physicalLocation": place}],
    }


FORMATS: Mapping[str, Callable[[CheckReport], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}

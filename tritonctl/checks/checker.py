# SPDX-License-Identifier: Apache-2.0
"""Run the rules over a repository: `check_repository` is the entry point of the library."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

from tritonctl.checks.autofix import without_unproven_edits
from tritonctl.checks.config.message import MAX_PROBLEMS
from tritonctl.checks.findings import CheckFinding, CheckReport, Hit, OmittedFindings
from tritonctl.checks.live.rules import LiveRule
from tritonctl.checks.memoize import memoized
from tritonctl.checks.placeholder_values import PLACEHOLDER_CHOICES, with_placeholders
from tritonctl.checks.repository import CheckTarget, Model, Repository
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import RULES
from tritonctl.checks.source_span import SourceText

_IGNORE = re.compile(r"#\s*tritonctl:\s*ignore(?:\[([\w\s,]*)\])?")
ANY_TARGET = CheckTarget()
_MAX_MESSAGE_CHARS = 500
MAX_HITS = 1_000  # of a rule in a model


_RuleHit = tuple[Rule, Model, Hit]


def check_repository(
    path: Path,
    target: CheckTarget = ANY_TARGET,
    *,
    rules: Collection[Rule] | None = None,
    shown_as: str | None = None,
) -> CheckReport:
    """Check a model repository; return the findings ordered by model and line.

    Only reads files; needs no server. `rules` defaults to all rules, and the path that findings
    show to the path relative to the working directory. Raises OSError if the folder cannot be read.
    """
    selected_rules = RULES.values() if rules is None else rules
    repository = Repository.read(
        path, path_for_display(path) if shown_as is None else shown_as, target
    )
    hits = [hit for rule in selected_rules for hit in _retained_hits(rule, repository)]
    findings_by_model: defaultdict[str, list[CheckFinding]] = defaultdict(list)
    omitted = []
    for rule, model, hit in _drop_uncertain(hits, repository):
        if hit.omitted:
            omitted.append(OmittedFindings(model.display_path, rule.id, rule.severity, hit.omitted))
        elif finding := make_finding(rule, model, hit):
            findings_by_model[model.name].append(finding)
    sources = _sources(repository)
    findings = [
        finding
        for name in sorted(findings_by_model)
        for finding in sorted(findings_by_model[name], key=_sort_key)
    ]
    return CheckReport(
        tuple(without_unproven_edits(findings, sources)),
        len(repository.models),
        sources,
        tuple(sorted(omitted, key=lambda entry: (entry.model, entry.rule))),
    )


def _retained_hits(rule: Rule, repository: Repository) -> Iterator[_RuleHit]:
    """Yield at most MAX_HITS hits of a rule in a model, then one that counts the others."""
    models: dict[str, Model] = {}
    counts: Counter[str] = Counter()
    omitted: Counter[str] = Counter()
    for model, hit in rule.find(repository):
        models[model.path.name] = model
        counts[model.path.name] += not hit.omitted
        if hit.omitted or counts[model.path.name] > MAX_HITS:
            omitted[model.path.name] += hit.omitted or 1
        else:
            yield rule, model, hit
    for name, count in omitted.items():
        yield rule, models[name], Hit("", "", omitted=count)


def _drop_uncertain(hits: list[_RuleHit], repository: Repository) -> list[_RuleHit]:
    """Drop the hits that depend on an unreadable value, so that one mistake is one finding."""
    rules = {rule.id: rule for rule, _, _ in hits if not rule.reports_unread_values}
    if not rules or not any(model.config.unread for model in repository.models.values()):
        return hits
    certain_keys: set[tuple[object, ...]] | None = None
    for choice in PLACEHOLDER_CHOICES:
        with with_placeholders(repository, choice) as substituted:
            repeated_keys = {
                _hit_key(rule_hit)
                for r in rules.values()
                for rule_hit in _retained_hits(r, substituted)
            }
        certain_keys = repeated_keys if certain_keys is None else certain_keys & repeated_keys
    return [
        rule_hit
        for rule_hit in hits
        if rule_hit[0].id not in rules
        or (
            _hit_key(rule_hit) in (certain_keys or ())
            # Beyond that number, values have no stand-ins.
            and len(rule_hit[1].config.unread) < MAX_PROBLEMS
        )
    ]


def _hit_key(rule_hit: _RuleHit) -> tuple[object, ...]:
    rule, model, hit = rule_hit
    return rule.id, model.name, hit.span, hit.relative_path, hit.message


def _sort_key(finding: CheckFinding) -> tuple[str, int, int, str]:
    return finding.path, finding.line, finding.column, finding.rule


def _sources(repository: Repository) -> dict[str, SourceText]:
    files = (model.file for model in repository.models.values())
    return {file.source.name: file.source for file in files if file}


def path_for_display(path: Path) -> str:
    """Return a path as findings show it: relative if it is below the working directory."""
    working_directory = Path.cwd()
    absolute = path.absolute()
    return (
        str(absolute.relative_to(working_directory))
        if absolute.is_relative_to(working_directory)
        else str(path)
    )


def make_finding(rule: Rule | LiveRule, model: Model, hit: Hit) -> CheckFinding | None:
    """Return the finding of a hit; None if a comment ignores it."""
    source = hit.source or (model.file.source if model.file and hit.span else None)
    line = column = end = 1
    text = ""
    if source and hit.span:
        line, column = source.position(hit.span.start)
        text = source.line(line)
        end = max(min(column + hit.span.end - hit.span.start, len(text) + 1), column + 1)
    finding = CheckFinding(
        path=source.name
        if source
        else "/".join(filter(None, (model.display_path, hit.relative_path))),
        line=line,
        column=column,
        end=end if text else column,
        text=text,
        rule=rule.id,
        severity=rule.severity,
        message=_shortened(hit.message),
        reason=hit.reason or rule.reason,
        fix=_shortened(hit.fix),
        edits=hit.edits,
    )
    return None if source is not None and _is_ignored(source, finding) else finding


def _shortened(message: str) -> str:
    """Shorten a message: its lists may have thousands of names."""
    return (
        message if len(message) <= _MAX_MESSAGE_CHARS else f"{message[: _MAX_MESSAGE_CHARS - 1]}…"
    )


def _is_ignored(source: SourceText, finding: CheckFinding) -> bool:
    """Whether a comment on the line, or alone on the line above, ignores the rule.

    The comment is `# tritonctl: ignore[ID]`.
    """
    line_numbers = [finding.line]
    if finding.line > 1 and source.line(finding.line - 1).lstrip().startswith("#"):
        line_numbers.append(finding.line - 1)
    for match in (_ignore_comment(source, line) for line in line_numbers):
        if match and (match[1] is None or finding.rule in re.split(r"[\s,]+", match[1])):
            return True
    return False


def _ignore_comment(source: SourceText, line: int) -> re.Match[str] | None:
    # Cached per line: a line may be a whole file with thousands of findings.
    return memoized(source, f"ignored {line}", lambda: _IGNORE.search(source.line(line)))

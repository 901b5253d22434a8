# SPDX-License-Identifier: Apache-2.0
"""Runs the rules over a repository: `check_repository` is the whole library's entrance."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from tritonctl.checks.findings import Finding, Hit, Report
from tritonctl.checks.live.rules import LiveRule
from tritonctl.checks.memoize import memoized
from tritonctl.checks.places import Source
from tritonctl.checks.repository import Model, Repository, Target
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import RULES
from tritonctl.checks.supposed import SUPPOSITIONS, supposing

_IGNORE = re.compile(r"#\s*tritonctl:\s*ignore(?:\[([\w\s,]*)\])?")
ANY = Target()
_MOST_MESSAGE = 500
# The family that reports unread values themselves.
_OF_UNREAD = "text"
_Found = tuple[Rule, Model, Hit]


def check_repository(
    path: Path,
    target: Target = ANY,
    *,
    rules: Collection[Rule] | None = None,
    shown_as: str | None = None,
) -> Report:
    """Everything wrong with a model repository, in the order of models and lines.

    Reads files, runs and imports nothing of them, needs no server. rules: all of them when absent.
    shown_as: what findings call the folder; as seen from here when absent.
    Raises OSError when the folder itself cannot be read.
    """
    chosen = RULES.values() if rules is None else rules
    repository = Repository.at(path, shown(path) if shown_as is None else shown_as, target)
    hits = [(rule, *one) for rule in chosen for one in rule.hits(repository)]
    by_model: defaultdict[str, list[Finding]] = defaultdict(list)
    for rule, model, hit in _certain(hits, repository):
        if finding := finding_of(rule, model, hit):
            by_model[model.name].append(finding)
    return Report(
        tuple(
            finding for name in sorted(by_model) for finding in sorted(by_model[name], key=_place)
        ),
        len(repository.models),
        _sources(repository),
    )


def _certain(found: list[_Found], repository: Repository) -> list[_Found]:
    """Without what depends on a value that could not be read: one mistake is one finding."""
    rules = {rule.id: rule for rule, _, _ in found if rule.family != _OF_UNREAD}
    if not rules or not any(model.config.unread for model in repository.models.values()):
        return found
    certain: set[tuple[object, ...]] | None = None
    for which in SUPPOSITIONS:
        with supposing(repository, which) as supposed:
            again = {_key((r, *one)) for r in rules.values() for one in r.hits(supposed)}
        certain = again if certain is None else certain & again
    return [one for one in found if one[0].id not in rules or _key(one) in (certain or ())]


def _key(found: _Found) -> tuple[object, ...]:
    rule, model, hit = found
    return rule.id, model.name, hit.span, hit.place, hit.message


def _place(finding: Finding) -> tuple[str, int, int, str]:
    return finding.path, finding.line, finding.column, finding.rule


def _sources(repository: Repository) -> dict[str, Source]:
    files = (model.file for model in repository.models.values())
    return {file.source.name: file.source for file in files if file}


def shown(path: Path) -> str:
    """How the repository is named to the user: from where they stand, if it is below."""
    here = Path.cwd()
    absolute = path.absolute()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


def finding_of(rule: Rule | LiveRule, model: Model, hit: Hit) -> Finding | None:
    """The hit with its place; None where a comment says to ignore it."""
    source = hit.source or (model.file.source if model.file and hit.span else None)
    line = column = end = 1
    text = ""
    if source and hit.span:
        line, column = source.position(hit.span.start)
        text = source.line(line)
        end = max(min(column + hit.span.end - hit.span.start, len(text) + 1), column + 1)
    finding = Finding(
        path=source.name if source else "/".join(filter(None, (model.shown, hit.place))),
        line=line,
        column=column,
        end=end if text else column,
        text=text,
        rule=rule.id,
        severity=rule.severity,
        message=_shortened(hit.message),
        why=hit.why or rule.why,
        fix=_shortened(hit.fix),
        edits=hit.edits,
    )
    return None if source is not None and _ignored(source, finding) else finding


def _shortened(message: str) -> str:
    """For people: a list in it may have thousands of names."""
    return message if len(message) <= _MOST_MESSAGE else f"{message[: _MOST_MESSAGE - 1]}…"


def _ignored(source: Source, finding: Finding) -> bool:
    """Whether a comment on the line, or alone on the line above, says `tritonctl: ignore[ID]`."""
    places = [finding.line]
    if finding.line > 1 and source.line(finding.line - 1).lstrip().startswith("#"):
        places.append(finding.line - 1)
    for match in (_comment(source, line) for line in places):
        if match and (match[1] is None or finding.rule in re.split(r"[\s,]+", match[1])):
            return True
    return False


def _comment(source: Source, line: int) -> re.Match[str] | None:
    # Once for a line, which may be a whole file with thousands of findings.
    return memoized(source, f"ignored {line}", lambda: _IGNORE.search(source.line(line)))

# SPDX-License-Identifier: Apache-2.0
"""Apply the edits of findings that provably keep the meaning of config.pbtxt (`--fix`).

A rule offers an edit only where `config/meanings.py` or `config/characters.py` is certain of what
was meant. The proof then reads the text before and after all edits: no value that could be read
changes, and no problem is new. A file that cannot be read at all is edited only if that makes it
readable. An edit without that proof stays a remedy in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tritonctl.checks.config.lexer import TextprotoError
from tritonctl.checks.config.meanings import certain_value
from tritonctl.checks.config.message import MAX_PROBLEMS, ConfigMessage, Problem, read
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.config.textproto import Scalar, parse
from tritonctl.checks.findings import CheckFinding, CheckReport, Edit
from tritonctl.checks.source_span import SourceText, Span
from tritonctl.host.files import replace_text

_MAX_SEPARATE_PROOFS = 20  # each reads the whole file


def apply_fixes(report: CheckReport) -> int:
    """Write every file that has edits; return the number of fixed findings.

    Links, permissions and owners stay. Raises HostError if a file cannot be written.
    """
    fixed = 0
    for name, edits in _edits_by_path(report.findings).items():
        source = report.sources[name]
        replace_text(Path(name), _apply_edits(source.text, edits))
        fixed += len(edits)
    return fixed


def without_unproven_edits(
    findings: Iterable[CheckFinding], sources: Mapping[str, SourceText]
) -> Iterator[CheckFinding]:
    """Yield the findings with only those edits that can be made together and keep the meaning."""
    findings = list(findings)
    proven = {
        name: set(_proven_edits(sources[name], edits)) if name in sources else set()
        for name, edits in _edits_by_path(findings).items()
    }
    for finding in findings:
        if finding.edits and not proven[finding.path].issuperset(finding.edits):
            finding = replace(finding, edits=())  # noqa: PLW2901
        yield finding


def _edits_by_path(findings: Iterable[CheckFinding]) -> dict[str, list[Edit]]:
    edits: dict[str, list[Edit]] = {}
    for finding in findings:
        if finding.edits:
            edits.setdefault(finding.path, []).extend(finding.edits)
    return {name: sorted(set(chosen)) for name, chosen in edits.items()}


def _proven_edits(source: SourceText, edits: Sequence[Edit]) -> Sequence[Edit]:
    """Return the edits that keep the meaning, tried together, then one after the other."""
    if not source.is_utf8:
        return ()
    baseline = _read(source.text)
    if baseline is None:  # Triton ignores the file, so there is no meaning to keep
        return edits if _read(_apply_edits(source.text, edits)) else ()
    if _keeps_meaning(baseline, source.text, edits):
        return edits
    proven: list[Edit] = []
    for edit in edits[:_MAX_SEPARATE_PROOFS]:
        if _keeps_meaning(baseline, source.text, [*proven, edit]):
            proven.append(edit)
        elif _keeps_meaning(baseline, source.text, [edit]):
            # Two spellings of one field: nobody can know which value was meant.
            proven = [p for p in proven if _keeps_meaning(baseline, source.text, [p, edit])]
    return proven


def _read(text: str) -> ConfigMessage | None:
    try:
        return read(parse(text), model_config_schema().ModelConfig())
    except TextprotoError:
        return None


def _keeps_meaning(baseline: ConfigMessage, text: str, edits: Sequence[Edit]) -> bool:
    """Whether edits only turn values that Triton cannot read into values that it can.

    Each edit mends one problem. Whatever could be read is read as before, and no problem is new,
    except inside a block that could not be read at all.
    """
    if any(edit.span.start < previous.span.end for previous, edit in pairwise(edits)):
        return False
    if max(baseline.problem_counts.values(), default=0) > MAX_PROBLEMS:
        return False  # not all of them were retained
    mended = {edit.span for edit in edits}
    problems = {problem.span: problem for problem in baseline.problems}
    updated_text = _apply_edits(text, edits)
    updated = _read(updated_text)
    if updated is None or not mended <= problems.keys():
        return False
    remaining = Counter(
        (problem.mistake, problem.text)
        for problem in baseline.problems
        if problem.span not in mended
    )
    opened = [
        _moved(value.span, edits)
        for span in mended
        if problems[span].mistake == "unknown" and (value := problems[span].value) is not None
    ]
    for problem in updated.problems:
        if _is_opened(problem, opened, updated_text):
            continue
        if not remaining[problem.mistake, problem.text]:
            return False
        remaining[problem.mistake, problem.text] -= 1
    return not +remaining and _contains(updated.message, baseline.message)


def _is_opened(problem: Problem, opened: Sequence[Span], text: str) -> bool:
    """Whether a problem was there before, in the value of a field that was unknown."""
    span = problem.span
    if any(value.start < span.start and span.end < value.end for value in opened):
        return True
    written = text[span.start : span.end]
    return (
        span in opened
        and isinstance(problem.value, Scalar)
        and certain_value(problem.descriptor, problem.value, written) is not None
    )


def _moved(span: Span, edits: Sequence[Edit]) -> Span:
    """Return where a span lies after the edits."""
    shift_start = sum(_growth(edit) for edit in edits if edit.span.end <= span.start)
    shift_end = sum(_growth(edit) for edit in edits if edit.span.end <= span.end)
    return Span(span.start + shift_start, span.end + shift_end)


def _growth(edit: Edit) -> int:
    return len(edit.text) - (edit.span.end - edit.span.start)


def _contains(updated: Any, baseline: Any) -> bool:
    """Whether a message has all that another has, and in repeated fields at least as much."""
    for field, value in baseline.ListFields():
        current = getattr(updated, field.name)
        if field.message_type is None:
            same = _is_subsequence(value, current) if field.is_repeated else current == value
        elif field.message_type.GetOptions().map_entry:
            same = all(key in current and _same(current[key], value[key]) for key in value)
        elif field.is_repeated:
            same = len(value) <= len(current) and _messages_contain(current, value)
        else:
            same = _contains(current, value)
        if not same:
            return False
    return True


def _same(current: Any, value: Any) -> bool:
    return _contains(current, value) if hasattr(value, "ListFields") else bool(current == value)


def _messages_contain(current: Sequence[Any], value: Sequence[Any]) -> bool:
    """Whether each message is contained in another, in their order."""
    remaining = iter(current)
    return all(any(_contains(each, wanted) for each in remaining) for wanted in value)


def _is_subsequence(value: Iterable[Any], current: Iterable[Any]) -> bool:
    remaining = iter(current)
    return all(any(each == wanted for each in remaining) for wanted in value)


def _apply_edits(text: str, edits: Sequence[Edit]) -> str:
    pieces, position = [], 0
    for edit in edits:
        pieces += [text[position : edit.span.start], edit.text]
        position = edit.span.end
    return "".join([*pieces, text[position:]])

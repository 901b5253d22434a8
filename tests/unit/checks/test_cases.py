# SPDX-License-Identifier: Apache-2.0
"""Run the cases of `cases/<family>.yaml`: a changed repository, and the findings expected in it.

A file has `groups`, and may have `texts`, which `<NAME>` inserts, and `repositories` to start from.
A group or a repository has these keys; a case that is a mapping overrides those of its group:

    from      repositories to start from: of the file, of REPOSITORIES, or "TC652 bad" (an example)
    files     files to add by path, as in the rules' own examples; null removes one
    code      the text of m/1/model.py
    replace   old and new texts; the first place in each file that has it is changed, and lines
              are indented as an old text that is alone on its line
    config    text to append to m/config.pbtxt
    target    the server; see `tritonctl.checks.examples.files`

The `cases` of a group are listed by the rules they must break: `none: [...]`, `TC601 TC602: [...]`.
A case that is a string replaces `<>` in the texts of its group, a mapping does so by its key `put`.
`expect` has properties of all findings, or of each in a list: `file`, `line`, `column`, `end`,
`severity`, `marked` (the underlined text), `text` (the line), `message`, `fix` and `edits` (the new
texts). `...` stands for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.check_models import streaming, tensorrt_llm
from tests.check_models.models import CONFIG, python_model
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import ExampleFile, files_of, target_of
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.rules import RULES

Files = dict[str, str | ExampleFile]
Record = Mapping[str, Any]

FOLDER = Path(__file__).parent / "cases"
REPOSITORIES: Mapping[str, Mapping[str, str | ExampleFile]] = {
    "empty": {},
    "python": python_model(),
    "behind stream": streaming.behind_stream(""),
    "decoder": streaming.DECODER,
    "single d": {"d/1/model.py": streaming.SINGLE},
    "stream": streaming.stream_model(streaming.STREAM),
    "single": streaming.stream_model(streaming.SINGLE),
    "returning": streaming.stream_model(streaming.RETURNING),
    "demanding": streaming.stream_model(streaming.DEMANDING),
    "never ready": streaming.stream_model(streaming.NEVER_READY),
    "in execute": streaming.stream_model(streaming.IN_EXECUTE),
    "without final": streaming.stream_model(streaming.WITHOUT_FINAL),
    "caller": streaming.stream_model(streaming.CALLER, CONFIG),
    "summer": streaming.stream_model(streaming.SUMMER, CONFIG),
    "llmapi": tensorrt_llm.llmapi_model(),
}


class Case(NamedTuple):
    """A repository of a family, and what must be reported in it."""

    family: str
    group: Record
    rules: Sequence[str]
    changes: str | Record


@cache
def read_cases(family: str) -> dict[str, Any]:
    """Read the file of a family."""
    record: dict[str, Any] = yaml.load(
        (FOLDER / f"{family}.yaml").read_bytes(), Loader=yaml.CSafeLoader
    )
    return record


def all_cases() -> Iterator[Any]:
    """List the cases as parameters with readable ids."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for group in read_cases(path.stem)["groups"]:
            for rules, cases in group["cases"].items():
                expected = [] if rules == "none" else rules.split()
                for number, changes in enumerate(cases):
                    case = Case(path.stem, group, expected, changes)
                    yield pytest.param(case, id=f"{path.stem}: {group['title']} {rules} {number}")


def repository(family: str, record: Record) -> Files:
    """Build the files that a record describes."""
    start = record.get("from", "python")
    files: Files = {}
    for name in [start] if isinstance(start, str) else start:
        files |= _start(family, name)
    added = record.get("files", {})
    files |= files_of({path: value for path, value in added.items() if value is not None})
    for path, value in added.items():
        if value is None:
            del files[path]
    if "code" in record:
        files["m/1/model.py"] = record["code"]
    for old, new in record.get("replace", {}).items():
        changed = {
            path: _inserted(text, old, new, first_only=True)
            for path, text in files.items()
            if isinstance(text, str) and old in text
        }
        assert changed, f"no file contains {old!r}"
        files |= changed
    if "config" in record:
        files["m/config.pbtxt"] = f"{files['m/config.pbtxt']}{record['config']}\n"
    return files


def _start(family: str, name: str) -> Mapping[str, str | ExampleFile]:
    own = read_cases(family).get("repositories", {})
    if name in own:
        return repository(family, _filled(own[name], read_cases(family).get("texts", {})))
    if name in REPOSITORIES:
        return REPOSITORIES[name]
    rule, side = name.split()
    return RULES[rule].bad_example if side == "bad" else RULES[rule].good_example


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Insert texts for `<NAME>` in keys and values."""
    if isinstance(value, Mapping):
        return {_filled(key, texts): _filled(each, texts) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, texts) for each in value]
    if not isinstance(value, str):
        return value
    for name, text in texts.items():
        value = _inserted(value, f"<{name}>", text)
    return value


def _inserted(text: str, old: str, new: str, *, first_only: bool = False) -> str:
    """Replace a text. New lines get the indentation of an old text that is alone on its line."""
    line = re.compile(rf"^( +){re.escape(old)}$", re.M)
    lines = new.rstrip("\n").split("\n")
    if line.search(text):
        return line.sub(lambda match: "\n".join(match[1] + part for part in lines), text)
    return text.replace(old, new, 1 if first_only else -1)


def check_finding(finding: CheckFinding, expected: Record, folder: Path) -> None:
    """Compare a finding with the properties that a case names."""
    actual = {
        **finding.as_record(),
        "file": str(Path(finding.path).relative_to(folder)),
        "marked": finding.text[finding.column - 1 : finding.end - 1],
        "edits": [edit.text for edit in finding.edits],
    }
    for name, value in expected.items():
        if isinstance(value, str) and "..." in value:
            pattern = ".*".join(map(re.escape, value.split("...")))
            assert re.fullmatch(pattern, actual[name], re.S)
        else:
            assert actual[name] == value


@pytest.mark.parametrize("case", list(all_cases()))
def test_the_family_reports_exactly_what_the_case_expects(case: Case, tmp_path: Path) -> None:
    """The rules of the family report these mistakes, in this order, at these places."""
    changes = {"put": case.changes} if isinstance(case.changes, str) else case.changes
    texts = {"": changes.get("put", ""), **read_cases(case.family).get("texts", {})}
    record = _filled({**case.group, **changes, "cases": {}, "put": ""}, texts)
    folder = put(tmp_path, repository(case.family, record))
    rules = [rule for rule in RULES.values() if rule.family == case.family]
    findings = check_repository(folder, target_of(record.get("target", {})), rules=rules).findings
    assert [finding.rule for finding in findings] == case.rules
    expected = record.get("expect", {}) if findings else {}
    each = expected if isinstance(expected, list) else [expected] * len(findings)
    for finding, properties in zip(findings, each, strict=True):
        check_finding(finding, properties, folder)

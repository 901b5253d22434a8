# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl check` says of repositories against what a real Triton does with them."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from tests.differential.drafts import Case
from tests.judge import Candidate, Judge
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget, Repository
from tritonctl.checks.rules import RULES

# As the server that judges: a machine without GPUs.
TARGET = CheckTarget("2.51.0", gpus=())
# What another server may have: no repository can be judged by it.
_LACKING = re.compile(r"unable to (find backend library|load shared library)")


@dataclass(frozen=True)
class Verdict:
    """One repository: why the server refuses it, "" where it loads, and the errors told of it."""

    case: Case
    refusal: str
    errors: tuple[CheckFinding, ...]

    @property
    def of_this_host(self) -> bool:
        """Whether it is refused for a backend that only this server lacks."""
        return not self.errors and _LACKING.search(self.refusal) is not None

    @property
    def agrees(self) -> bool:
        """An error if, and only if, it is refused."""
        return bool(self.refusal) == bool(self.errors) or self.of_this_host

    @property
    def false_alarm(self) -> bool:
        """An error on what loads: the worse way to be wrong."""
        return not self.agrees and bool(self.errors)


def load_errors(case: Case) -> tuple[CheckFinding, ...]:
    """The errors that keep the case's model from loading: its own, and of the models it uses."""
    with tempfile.TemporaryDirectory() as name:
        folder = put(Path(name), case.files)
        needed = _needed(folder, case.model)
        return tuple(
            finding
            for finding in check_repository(folder, TARGET).findings
            if finding.severity == "error"
            and RULES[finding.rule].observable_on == "load"
            and Path(finding.path).relative_to(folder).parts[0] in needed
        )


def _needed(folder: Path, model: str) -> set[str]:
    """The model, and those that its steps name."""
    models = Repository.read(folder, "", TARGET).models
    found, ahead = set(), [model]
    while ahead:
        name = ahead.pop()
        if name in found or name not in models:
            continue
        found.add(name)
        config = models[name].config
        steps = config.message.ensemble_scheduling.step if config else ()
        ahead += [step.model_name for step in steps]
    return found


def verdicts(judge: Judge, cases: Sequence[Case]) -> Iterator[Verdict]:
    """Each with names of its own. A disagreement is judged again, alone."""
    numbered = [case.numbered(number) for number, case in enumerate(cases)]
    candidates = [_candidate(case) for case in numbered]
    for case, candidate, refusal in zip(
        numbered, candidates, judge.refusals(candidates), strict=True
    ):
        errors = load_errors(case)
        verdict = Verdict(case, refusal, errors)
        if not verdict.agrees:
            verdict = replace(verdict, refusal=next(judge.refusals([candidate])))
        yield verdict


def _candidate(case: Case) -> Candidate:
    """Without the pool's models, which the server has."""
    own = {name: file for name, file in case.files.items() if not name.startswith("pool_")}
    return Candidate(case.model, own)


@dataclass(frozen=True)
class Row:
    """Of the repositories that one thing was done to."""

    touch: str
    generated: int
    of_this_host: int
    refused: int
    agreed: int
    false_alarms: int
    misses: int


def table(judged: Sequence[Verdict]) -> list[Row]:
    """A row for each thing that was done, by name, then the sum; a repository may be in several."""
    counts: dict[str, Counter[str]] = {}
    for verdict in judged:
        kind = "alarm" if verdict.false_alarm else "agreed" if verdict.agrees else "miss"
        kind = "host" if verdict.of_this_host else kind
        for touch in {*verdict.case.touches, "~"}:
            counts.setdefault(touch, Counter()).update(
                ["all", kind, *(["refused"] if verdict.refusal else [])]
            )
    return [
        Row(
            "all" if touch == "~" else touch,
            count["all"],
            count["host"],
            count["refused"],
            count["agreed"],
            count["alarm"],
            count["miss"],
        )
        for touch, count in sorted(counts.items())
    ]


def as_text(rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    head = "| done to it | generated | host's | refused | agreed | false alarms | misses |"
    lines = ["| " + " | ".join(map(str, astuple(row))) + " |" for row in rows]
    return "\n".join([head, "|---" * 7 + "|", *lines])


def described(verdict: Verdict) -> str:
    """A disagreement as somebody needs it who has to settle it."""
    kind = "FALSE ALARM" if verdict.false_alarm else "MISS"
    lines = [f"## {kind}: {', '.join(verdict.case.touches)}", ""]
    lines += [f"server: {verdict.refusal or 'loads it'}"]
    lines += [f"check: {e.rule} {e.line}:{e.column} {e.message}" for e in verdict.errors]
    for name, file in verdict.case.files.items():
        if name.endswith("model.py") and not verdict.case.touches[0].startswith("code"):
            lines.append(f"--- {name}")
        elif not name.startswith("pool_"):
            content = file if isinstance(file, str) else repr(file.content)
            lines += [f"--- {name}", content.rstrip("\n")]
    return "\n".join(lines) + "\n"


def as_record(verdict: Verdict) -> dict[str, Any]:
    """For programs."""
    return {
        "touches": list(verdict.case.touches),
        "refusal": verdict.refusal,
        "errors": [f"{e.rule} {e.line}:{e.column} {e.message}" for e in verdict.errors],
        "agrees": verdict.agrees,
    }

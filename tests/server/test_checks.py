# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl check` says of the rules' examples, against what a real Triton does with them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import pytest

from tests.conftest import Cli
from tests.judge import Candidate, Judge, proven
from tritonctl.checks.examples.files import Example
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import RULES
from tritonctl.project.schema import Project

pytestmark = pytest.mark.server

SHOWN = [rule for rule in RULES.values() if rule.observable_on != "elsewhere"]


def sentinels() -> list[Rule]:
    """Of each family an error that shows when loading and something less, if there are such."""
    found: dict[tuple[str, bool], Rule] = {}
    for rule in SHOWN:
        found.setdefault((rule.id[:3], refused(rule)), rule)
    return list(found.values())


def refused(rule: Rule) -> bool:
    """Whether the server refuses the bad example; it loads everything else."""
    return rule.severity == "error" and rule.observable_on == "load"


@pytest.fixture(scope="module")
def one_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """One server for all examples."""
    judge = Judge(tmp_path_factory.mktemp("judge"))
    yield judge
    judge.stop()


@pytest.fixture
def judge(one_judge: Judge, request: pytest.FixtureRequest) -> Judge:
    """As it is, or another one."""
    return proven(one_judge, request)


def key(example: Example) -> Hashable:
    """Equal for equal examples: many rules share the good one."""
    return frozenset(example.items())


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(sentinels(), id="sentinels"),
        pytest.param(SHOWN, id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_examples(rules: Sequence[Rule], judge: Judge) -> None:
    """An error is what the server refuses, if it shows when loading; everything else it loads."""
    examples = {key(one): one for rule in rules for one in (rule.good_example, rule.bad_example)}
    candidates = [Candidate.of(one, f"x{number}") for number, one in enumerate(examples.values())]
    refusals = dict(zip(examples, judge.refusals(candidates), strict=True))
    wrong = [
        f"{rule.id} {kind}: {refusals[key(example)] or 'it is loaded'}"
        for rule in rules
        for kind, example, expected in (
            ("good", rule.good_example, False),
            ("bad", rule.bad_example, refused(rule)),
        )
        if bool(refusals[key(example)]) != expected
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_sentinels() -> None:
    """Refused and loaded, of every family that shows on such a server."""
    assert {rule.id[:3] for rule in sentinels()} == {rule.id[:3] for rule in SHOWN}
    assert {refused(rule) for rule in sentinels()} == {True, False}


def test_the_shipped_example_is_clean(cli: Cli, speller_project: Project) -> None:
    """In the repository that is rendered of it there is nothing to tell, not even advice."""
    assert cli("render", cwd=speller_project.root).returncode == 0
    checked = cli("check", cwd=speller_project.root)
    assert (checked.returncode, checked.stdout.splitlines()[-1].split(": ")[1]) == (
        0,
        "nothing found",
    )

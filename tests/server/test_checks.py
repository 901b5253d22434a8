# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl check` says of the rules' examples, against what a real Triton does with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Cli
from tests.judge import Judge
from tritonctl.checks.rules import RULES
from tritonctl.project.schema import Project

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """One server for all examples."""
    judge = Judge(tmp_path_factory.mktemp("judge"))
    yield judge
    judge.stop()


@pytest.mark.parametrize("name", [n for n, r in RULES.items() if r.shows != "elsewhere"])
def test_examples(name: str, judge: Judge) -> None:
    """An error is what the server refuses, if it shows when loading; everything else it loads."""
    rule = RULES[name]
    assert judge.refuses(rule.good) == ""
    refusal = judge.refuses(rule.bad)
    refused = rule.severity == "error" and rule.shows == "load"
    assert bool(refusal) == refused, refusal or "it is loaded"


def test_the_shipped_example_is_clean(cli: Cli, speller_project: Project) -> None:
    """In the repository that is rendered of it there is nothing to tell, not even advice."""
    assert cli("render", cwd=speller_project.root).returncode == 0
    checked = cli("check", cwd=speller_project.root)
    assert (checked.returncode, checked.stdout.splitlines()[-1].split(": ")[1]) == (
        0,
        "nothing found",
    )

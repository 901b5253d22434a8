# SPDX-License-Identifier: Apache-2.0
"""The pages of the rules, and their committed index."""

from __future__ import annotations

import re
from pathlib import Path

from tritonctl.checks.report.pages import INDEX, index, rule_pages
from tritonctl.checks.rules import RULES

FOLDER = Path(__file__).parents[3] / "docs" / "reference" / "check-rules"
PROJECTS = {"server", "core", "python_backend", "tensorrtllm_backend", "onnxruntime_backend",
            "client", "common", "perf_analyzer", "model_analyzer", "triton_cli", "tutorials",
            "TensorRT-LLM", "vllm", "onnxruntime"}  # fmt: skip


def test_the_committed_index_is_current() -> None:
    """`make rules` has been run since a rule was changed."""
    assert (FOLDER / INDEX).read_text(encoding="utf-8") == index(), "make rules"
    assert [path.name for path in FOLDER.iterdir()] == [INDEX]


def test_what_is_on_them() -> None:
    """What it is, why, how both examples look, how to leave it out, whom it answers."""
    page = rule_pages()["TC102.md"]
    assert "# TC102 placeholder-left\n\n**error**. Looks for a template's placeholder" in page
    assert "max_batch_size: ${triton_max_batch_size}\n" in page
    assert page.index("## Bad") < page.index("```pbtxt\n") < page.index("## Good")
    assert "Triton refuses to load the model." in page
    assert "# tritonctl: ignore[TC102]" in page
    address = "https://github.com/triton-inference-server/server/issues/8592"
    assert f"[server#8592]({address})" in page
    assert "Triton loads the model anyway." in rule_pages()["TC108.md"]


def test_the_table_has_every_rule() -> None:
    """One row each, five cells."""
    rows = [line for line in index().splitlines() if line.startswith("| `TC")]
    assert len(rows) == len(RULES)
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_issues_are_of_known_projects() -> None:
    """As in server#8592, so that links lead somewhere."""
    issues = [(name, issue) for name, rule in RULES.items() for issue in rule.user_reports]
    assert issues
    for name, issue in issues:
        project, _, number = issue.partition("#")
        assert project in PROJECTS, name
        assert number.isdecimal(), name

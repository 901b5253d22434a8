# SPDX-License-Identifier: Apache-2.0
"""The pages of the rules: those in docs/reference/check-rules are those that the rules give."""

from __future__ import annotations

import re
from pathlib import Path

from tritonctl.checks.report.pages import INDEX, pages, write
from tritonctl.checks.rules import RULES

FOLDER = Path(__file__).parents[3] / "docs" / "reference" / "check-rules"
PROJECTS = {"server", "core", "python_backend", "tensorrtllm_backend", "onnxruntime_backend",
            "client", "common", "perf_analyzer", "model_analyzer", "triton_cli", "tutorials",
            "TensorRT-LLM", "vllm", "onnxruntime"}  # fmt: skip


def test_the_committed_pages_are_those_of_the_rules() -> None:
    """`make rules` has been run since a rule was changed."""
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    made = pages()
    assert sorted(there) == sorted(made), "make rules"
    stale = [name for name, text in made.items() if there[name] != text]
    assert stale == [], "make rules"


def test_what_is_on_them() -> None:
    """What it is, why, how both examples look, how to leave it out, whom it answers."""
    page = pages()["TC102.md"]
    assert "# TC102 placeholder-left\n\n**error**. Looks for a template's placeholder" in page
    assert "max_batch_size: ${triton_max_batch_size}\n" in page
    assert page.index("## Bad") < page.index("```pbtxt\n") < page.index("## Good")
    assert "Triton refuses to load the model." in page
    assert "# tritonctl: ignore[TC102]" in page
    address = "https://github.com/triton-inference-server/server/issues/8592"
    assert f"[server#8592]({address})" in page
    assert "Triton loads the model anyway." in pages()["TC108.md"]


def test_the_table_has_every_rule() -> None:
    """One row each, five cells."""
    rows = [line for line in pages()[INDEX].splitlines() if line.startswith("| [TC")]
    assert len(rows) == len(RULES)
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_issues_are_of_known_projects() -> None:
    """As in server#8592, so that links lead somewhere."""
    issues = [(name, issue) for name, rule in RULES.items() for issue in rule.answers]
    assert issues
    for name, issue in issues:
        project, _, number = issue.partition("#")
        assert project in PROJECTS, name
        assert number.isdecimal(), name


def test_pages_of_rules_that_are_no_more_go(tmp_path: Path) -> None:
    """Writing again leaves exactly the pages."""
    (tmp_path / "TC999.md").write_text("gone")
    write(tmp_path)
    write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(pages())

# SPDX-License-Identifier: Apache-2.0
"""What is found in public example repositories: what is wrong there, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.checks.public_examples import EXAMPLES
from tritonctl.checks.checker import check_repository
from tritonctl.checks.repository import CheckTarget


@pytest.mark.parametrize("name", EXAMPLES)
def test_public_examples(name: str, tmp_path: Path) -> None:
    """Each finding by its rule, its file and the beginning of what is underlined."""
    example = EXAMPLES[name]
    folder = example.put(tmp_path / "models")
    findings = list(check_repository(folder, CheckTarget("2.51.0"), shown_as=".").findings)
    for rule, path, text in example.found:
        [match] = [f for f in findings if (f.rule, f.path) == (rule, path)]
        assert match.text[match.column - 1 :].startswith(text)
        findings.remove(match)
    assert findings == []

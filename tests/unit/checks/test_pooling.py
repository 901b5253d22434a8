# SPDX-License-Identifier: Apache-2.0
"""TC354 with a checkpoint elsewhere in the repository; its other cases: `cases/ensembles.yaml`."""

from __future__ import annotations

from pathlib import Path

from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

TARGET = CheckTarget("2.51.0")
RULE = RULES["TC354"]
CODE, POOLING = "m/1/model.py", "m/1/1_Pooling/config.json"
NAMED = 'states = pb_utils.get_input_tensor_by_name(request, "last_hidden_state").as_numpy()'


def found(repository: Path, code: str, files: dict[str, str] | None = None) -> list[str]:
    """Return the rule's messages about a function next to a checkpoint that pools by the mean."""
    every = dict(RULE.bad_example) | {CODE: f"def pool(request, output, mask):\n    {code}\n"}
    findings = check_repository(put(repository, every | (files or {})), TARGET, rules=[RULE])
    return [finding.message for finding in findings.findings]


def test_a_checkpoint_elsewhere_in_the_repository(tmp_path: Path) -> None:
    """The encoder's folder counts, unless two checkpoints pool differently."""
    code = f"{NAMED}\n    return states[:, 0]"
    here, pooling = str(RULE.bad_example["m/1/modules.json"]), str(RULE.bad_example[POOLING])
    moved = {"m/1/modules.json": "[]", "e/1/modules.json": here}
    assert len(found(tmp_path, code, moved | {"e/1/1_Pooling/config.json": pooling})) == 1
    other = {"f/modules.json": here, "f/1_Pooling/config.json": '{"pooling_mode": "cls"}'}
    assert found(tmp_path, code, moved | other) == []

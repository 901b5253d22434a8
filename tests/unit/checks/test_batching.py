# SPDX-License-Identifier: Apache-2.0
"""The rules about batching read any configuration; their cases are in `cases/batching.yaml`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check_models.models import CONFIG, python_model
from tests.examples import examples
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

FIELDS = [
    "max_queue_delay_microseconds: 5000000",
    "preferred_batch_size: [ 0, -3 ]",
    "preferred_batch_size: [ ]",
    "preserve_ordering: true",
    "priority_levels: 4294967295",
    "default_priority_level: 7",
    "default_queue_policy { timeout_action: 77 default_timeout_microseconds: 1 }",
    "priority_queue_policy { key: 9 value { allow_timeout_override: true } }",
    "priority_queue_policy { key: 0 }",
    "default_queue_policy: { max_queue_size: 0 }",
    "oldest { max_candidate_sequences: -5 }",
    "direct { }",
    "}",
]


@examples(150)
@given(
    st.sampled_from(["dynamic_batching", "sequence_batching"]),
    st.lists(st.sampled_from(FIELDS), max_size=8),
    st.integers(-2, 9),
)
def test_any_configuration_is_read(
    tmp_path_factory: pytest.TempPathFactory, block: str, fields: list[str], size: int
) -> None:
    """The rules finish and raise nothing, whatever a scheduler's fields hold."""
    inside = "\n".join(fields)
    sized = CONFIG.replace("max_batch_size: 8", f"max_batch_size: {size}")
    folder = put(tmp_path_factory.mktemp("any"), python_model(f"{sized}{block} {{ {inside} }}\n"))
    rules = [rule for rule in RULES.values() if rule.family == "batching"]
    check_repository(folder, CheckTarget("2.51.0"), rules=rules)

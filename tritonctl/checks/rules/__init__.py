# SPDX-License-Identifier: Apache-2.0
"""All rules by id; a module per family."""

from __future__ import annotations

from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    batching,
    capacity,
    config,
    ensembles,
    instances,
    layout,
    security,
    streaming,
    tensorrt_llm,
    tensors,
    text,
)

_FAMILIES = (
    layout,
    text,
    config,
    tensors,
    ensembles,
    streaming,
    batching,
    instances,
    tensorrt_llm,
    capacity,
    security,
)
RULES: dict[str, Rule] = {rule.id: rule for family in _FAMILIES for rule in family.RULES}

# SPDX-License-Identifier: Apache-2.0
"""All rules by id; a package per family."""

from __future__ import annotations

from tritonctl.checks.rule import Rule, rules_by_id
from tritonctl.checks.rules import (
    batching,
    capacity,
    config,
    ensembles,
    frontend,
    instances,
    layout,
    security,
    streaming,
    tensorrt_llm,
    tensors,
    text,
)

__all__ = [
    "RULES",
    "batching",
    "capacity",
    "config",
    "ensembles",
    "frontend",
    "instances",
    "layout",
    "security",
    "streaming",
    "tensorrt_llm",
    "tensors",
    "text",
]

RULES: dict[str, Rule] = rules_by_id()

# SPDX-License-Identifier: Apache-2.0
"""TC15x to TC19x: what Triton's own validation of a configuration refuses.

Written down from Triton's documentation and from what tritonserver 2.51 does (see
tests/server/test_checks.py).
"""

from __future__ import annotations

from tritonctl.checks.readable_config import when_read
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    config_batching,
    config_instances,
    config_model,
    config_sequences,
    config_tensors,
)

RULES: tuple[Rule, ...] = when_read(
    (
        *config_model.RULES,
        *config_tensors.RULES,
        *config_batching.RULES,
        *config_sequences.RULES,
        *config_instances.RULES,
    )
)

# SPDX-License-Identifier: Apache-2.0
"""TC3xx: whether an ensemble's steps fit together.

Sources:
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ensemble_models.md
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/decoupled_models.md
and what tritonserver 2.51 says when it loads ensembles (tests/server/test_checks.py).
"""

from __future__ import annotations

from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    ensembles_batches,
    ensembles_edges,
    ensembles_flow,
    ensembles_steps,
    ensembles_streams,
)

RULES: tuple[Rule, ...] = (
    *ensembles_steps.RULES,
    *ensembles_flow.RULES,
    *ensembles_edges.RULES,
    *ensembles_batches.RULES,
    *ensembles_streams.RULES,
)

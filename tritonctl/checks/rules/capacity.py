# SPDX-License-Identifier: Apache-2.0
"""TC8xx: whether memory is enough for all models together, and requests fit into messages.

Sources: of each part, in its docstring.
"""

from __future__ import annotations

from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import capacity_gpu, capacity_requests, capacity_shared

RULES: tuple[Rule, ...] = (*capacity_shared.RULES, *capacity_gpu.RULES, *capacity_requests.RULES)

# SPDX-License-Identifier: Apache-2.0
"""TC6xx: whether instances have the devices and cores they ask for, and can never wait for ever.

Sources: of each part, in its docstring.
"""

from __future__ import annotations

from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    instances_backends,
    instances_bls,
    instances_devices,
    instances_limits,
    instances_threads,
)

RULES: tuple[Rule, ...] = (
    *instances_devices.RULES,
    *instances_backends.RULES,
    *instances_threads.RULES,
    *instances_limits.RULES,
    *instances_bls.RULES,
)

# SPDX-License-Identifier: Apache-2.0
"""TC9xx: whether what lies in a repository opens the server to others."""

from __future__ import annotations

from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import (
    security_code,
    security_files,
    security_requests,
    security_secrets,
)

RULES: tuple[Rule, ...] = (
    *security_code.RULES,
    *security_files.RULES,
    *security_secrets.RULES,
    *security_requests.RULES,
)

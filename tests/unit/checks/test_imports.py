# SPDX-License-Identifier: Apache-2.0
"""What a check of one model waits for before it begins."""

from __future__ import annotations

import subprocess
import sys

SLOW = ("grpc", "numpy", "pydantic", "rich", "yaml")
CODE = f"""
import sys
import tritonctl.checks.checker, tritonctl.checks.report.formats
print([name for name in {SLOW} if name in sys.modules])
"""


def test_rules_import_nothing_slow() -> None:
    """Each of these takes longer than a model takes to check; rules import them where they ask."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"

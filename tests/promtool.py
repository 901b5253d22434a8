# SPDX-License-Identifier: Apache-2.0
"""Prometheus' own programs, where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="NO PROMTOOL: apt-get install prometheus; nobody checked the rules",
)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it; its words are on both outputs."""
    program = shutil.which("promtool") or "promtool"
    return subprocess.run(
        [program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )

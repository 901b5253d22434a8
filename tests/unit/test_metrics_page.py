# SPDX-License-Identifier: Apache-2.0
"""The page of metrics is that of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_that_of_the_code() -> None:
    """`make reference` has been run since a metric was changed."""
    command = [sys.executable, str(DOCS / "metrics_page.py")]
    made = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    assert "| `tritonctl_active_streams` | gauge |" in made
    assert "| `tritonctl_time_to_first_token_seconds_bucket` | counter |" in made
    assert (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8") == made, "make reference"

# SPDX-License-Identifier: Apache-2.0
"""The last lines of a run say what it did not test: else it is taken for the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After what other plugins tell."""
    for line in left_out(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line, yellow=True)


def left_out(skipped: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """One line for each reason, the most frequent first."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in skipped
        if isinstance(report.longrepr, tuple)  # else an expected failure
    )
    return [f"NOT TESTED: {count} skipped: {reason}" for reason, count in reasons.most_common()]

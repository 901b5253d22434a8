# SPDX-License-Identifier: Apache-2.0
"""Random repositories: `tritonctl check` finds an error exactly where a real Triton refuses.

`make check-differential` does the same with a thousand and prints a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.differential.agreement import described, verdicts
from tests.differential.pinned import pinned
from tests.differential.pool import pool_files
from tests.differential.repositories import sample
from tests.judge import Judge
from tritonctl.checks.examples.files import Example

pytestmark = pytest.mark.server

COUNT, SEED = 200, 7


@contextmanager
def judging(folder: Path, kept: Example) -> Iterator[Judge]:
    """A server on which these models stay loaded."""
    judge = Judge(folder, kept)
    try:
        yield judge
    finally:
        judge.stop()


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_verdicts_agree(tmp_path: Path) -> None:
    """No false alarm and no miss."""
    with judging(tmp_path, pool_files()) as judge:
        judged = list(verdicts(judge, sample(COUNT, SEED)))
    assert len(judged) == COUNT
    refused = sum(bool(verdict.refusal) for verdict in judged)
    assert COUNT / 5 < refused < COUNT * 4 / 5, "a sample of which nearly all load shows little"
    wrong = [described(verdict) for verdict in judged if not verdict.agrees]
    assert not wrong, "\n".join(wrong)


def test_what_was_pinned_is_what_the_server_does(tmp_path: Path) -> None:
    """Each disagreement that there once was, under the server that is tested with."""
    cases = pinned()
    files = {path: file for one in cases for path, file in one.case.files.items()}
    used = {path: file for path, file in files.items() if path.startswith("pool_")}
    with judging(tmp_path, used) as judge:
        judged = list(verdicts(judge, [one.case for one in cases]))
    for one, verdict in zip(cases, judged, strict=True):
        assert bool(verdict.refusal) == bool(one.refusal), one.name

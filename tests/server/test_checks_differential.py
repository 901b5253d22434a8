# SPDX-License-Identifier: Apache-2.0
"""Random repositories: `tritonctl check` finds an error exactly where a real Triton refuses.

`make check-differential` does the same with a thousand and prints a table.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.agreement import described, verdicts
from tests.differential.pinned import pinned
from tests.differential.pool import pool_files
from tests.differential.repositories import sample
from tests.judge import Judge

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

COUNT, SEED = 200, 7


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """One server for all; the pool's models stay loaded."""
    judge = Judge(tmp_path_factory.mktemp("differential"), pool_files())
    yield judge
    judge.stop()


def test_verdicts_agree(judge: Judge) -> None:
    """No false alarm and no miss."""
    judged = list(verdicts(judge, sample(COUNT, SEED)))
    assert len(judged) == COUNT
    refused = sum(bool(verdict.refusal) for verdict in judged)
    assert COUNT / 5 < refused < COUNT * 4 / 5, "a sample of which nearly all load shows little"
    wrong = [described(verdict) for verdict in judged if not verdict.agrees]
    assert not wrong, "\n".join(wrong)


def test_what_was_pinned_is_what_the_server_does(judge: Judge) -> None:
    """Each disagreement that there once was, under the server that is tested with."""
    cases = pinned()
    judged = verdicts(judge, [one.case for one in cases])
    for one, verdict in zip(cases, judged, strict=True):
        assert bool(verdict.refusal) == bool(one.refusal), one.name

# SPDX-License-Identifier: Apache-2.0
"""200 clients against real frontends and a real Redis; benchmarks/frontend has the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger_run import SCENES, Scene, play

pytestmark = [pytest.mark.exhaustive, pytest.mark.server, pytest.mark.timeout(900)]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_no_token_too_many_and_none_lost(scene: Scene, tmp_path: Path) -> None:
    """In the worst 60 seconds at most the budget, and most of it; later it is whole again."""
    outcome = play(scene, tmp_path)
    assert 0.5 * scene.budget < outcome.worst <= scene.budget
    assert outcome.answers["429"] > 0
    assert outcome.answers["broken"] or not scene.crashes
    assert outcome.again

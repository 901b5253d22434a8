# SPDX-License-Identifier: Apache-2.0
"""A kubectl of our own on the PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.kubectl import FakeKubectl


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """What kubectl answers in this test."""
    fake = FakeKubectl(tmp_path / "kubectl")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    return fake

# SPDX-License-Identifier: Apache-2.0
"""The Docker Engine that these tests run on."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from tests.container_engine import DockerHost, answers

pytestmark = pytest.mark.docker


def test_an_engine_that_died_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was: what has its address need not know."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with closing(DockerHost()) as host:
        if not host.variables:
            pytest.skip("the machine's own Docker Engine is not ours to kill")
        first, address = host.daemon, host.variables["DOCKER_HOST"]
        os.kill(first, signal.SIGKILL)
        host.prove()
        assert answers(address)
        assert host.daemon != first
    assert not answers(address)
    assert not Path(address.removeprefix("unix://")).parent.exists()

# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a configuration that a real Triton loads, and what requests then come to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.served import VALUES, Served
from tritonctl.checks.rules import RULES

pytestmark = pytest.mark.server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A server that is not used again."""
    server = Served(tmp_path)
    yield server
    server.stop()


def test_a_name_twice(server: Served) -> None:
    """The second input counts, and nobody can send it."""
    rule = RULES["TC168"]
    server.serve(rule.good_example)
    assert server.infer() == VALUES
    server.serve(rule.bad_example)
    with pytest.raises(grpc.RpcError, match="expected 2 inputs but got 1"):
        server.infer()

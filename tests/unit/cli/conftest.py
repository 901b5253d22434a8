# SPDX-License-Identifier: Apache-2.0
"""The command line in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from tritonctl.cli import application

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """Run a command in this process, in the sandbox's folder."""
    monkeypatch.chdir(sandbox.root)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["tritonctl", *arguments])
        return CliRunner().invoke(application(list(arguments)), list(arguments))

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)

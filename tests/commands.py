# SPDX-License-Identifier: Apache-2.0
"""The command line without a process of its own: the verbs, not how Python starts and ends.

A start of Python costs half a second of a core, most of it imports. What a process is the subject
of (signals, streams that are closed, what is imported) runs `python -m tritonctl`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from typer.testing import CliRunner

from tritonctl.cli import application


def run_here(
    *arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`tritonctl ARGUMENTS` in a folder, with variables beside those of this process.

    Standard input is empty. What no command should let through is raised: a user would see a
    traceback.
    """
    words = [str(argument) for argument in arguments]
    with ExitStack() as stack:
        stack.enter_context(chdir(cwd))
        stack.enter_context(mock.patch.dict(os.environ, environment or {}))
        stack.enter_context(mock.patch.object(sys, "argv", ["tritonctl", *words]))
        stack.enter_context(_same_handlers())
        done = CliRunner().invoke(application(words), words)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def verbs() -> dict[str, Any]:
    """The commands by what one types for them: `up`, `loadtest run`."""
    return dict(_verbs(typer.main.get_command(application())))


def _verbs(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _verbs(command, f"{name} ")
        else:
            yield f"{before}{name}", command


@contextmanager
def _same_handlers() -> Iterator[None]:
    """Put back what the command does at signals that end it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

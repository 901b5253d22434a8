# SPDX-License-Identifier: Apache-2.0
"""Turn exceptions into a message, a record with `--json`, and an exit code."""

from __future__ import annotations

import io
import os
import platform
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import typer

from tritonctl.cli.help import CommandGroup
from tritonctl.errors import InterruptionError, TritonctlError, UnexpectedError, UsageError
from tritonctl.host.version import __version__


class ErrorBoundary(CommandGroup):
    """The root command: runs a verb and turns its failure into an exit code.

    Typer has no hook for this; overriding `invoke` of its public `TyperGroup` works for commands
    and `typer.testing.CliRunner`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treat `help VERB` as `VERB --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        # SIGHUP: children run in their own sessions and do not notice that the terminal closed.
        for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, _interrupt)
        _prepare_streams()
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:  # `tritonctl logs | head`: the reader closed the pipe
            sys.stdout = None
            raise typer.Exit(0) from None
        except (Exception, KeyboardInterrupt) as error:
            if hasattr(error, "format_message"):  # Typer prints its usage errors itself
                _simplify_message(error)
                _console().error_record(_usage_error(error))
                raise
            failure = _failure(error)
            _console().error(failure)
            raise typer.Exit(failure.exit_code) from error


def _failure(error: BaseException) -> TritonctlError:
    if isinstance(error, TritonctlError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return InterruptionError(
            "interrupted; no partial files remain", remedy="run the command again"
        )
    problem = "unexpected error: this is a bug in tritonctl"
    try:
        log = _bug_log()
    except OSError:  # a full disk may be the cause itself
        return UnexpectedError(
            problem, remedy="report it with the lines above", details=traceback.format_exc()
        )
    return UnexpectedError(f"{problem}. Details: {log}", remedy=f"report it with {log}")


def _simplify_message(error: Any) -> None:
    """Replace pydantic's message for an option's value by a simpler one."""
    if error.__cause__ is None:
        return
    from pydantic import ValidationError

    from tritonctl.project.expected import explain_single_value

    if isinstance(error.__cause__, ValidationError):
        error.message = explain_single_value(error.__cause__) or error.message


def _usage_error(error: Any) -> UsageError:
    """Convert Typer's usage error, whose class is not public, into ours."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "tritonctl"
    return UsageError(error.format_message(), remedy=f"{command} --help")


def _prepare_streams() -> None:
    """Open /dev/null for closed streams (`>&-`); escape characters outside the encoding."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 - stays open
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _interrupt(*_: object) -> None:
    # The same clean-up as for Ctrl-C: staging folders, children, locks.
    raise KeyboardInterrupt


def _console() -> Any:
    from tritonctl.cli.console.output import Console

    return Console(as_json="--json" in sys.argv)


def _bug_log() -> Path:
    with tempfile.NamedTemporaryFile(
        "w", prefix="tritonctl-bug-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        log.write(f"tritonctl {__version__}, Python {sys.version}, {platform.platform()}\n")
        log.write(f"command: {' '.join(sys.argv)}\n\n{traceback.format_exc()}")
    return Path(log.name)

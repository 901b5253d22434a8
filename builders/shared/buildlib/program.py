# SPDX-License-Identifier: Apache-2.0
"""The main program of every builder: `SCRIPT --request R.json --result S.json`.

builders/README.md has the contract (request, result, progress lines, exit codes). Standard
library only.
"""

import argparse
import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from buildlib.disk import full_disk_error
from buildlib.problems import BuildError

RESULT_SCHEMA = "tritonctl.build-result/1"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class Stages:
    """Announces each stage to the host and records its duration in seconds."""

    def __init__(self, names: Iterable[str]) -> None:
        self.durations = dict.fromkeys(names, 0.0)
        self.current = "check"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announce the stage `name` and time its body."""
        self.current = name
        print_line(f"@stage {name}")
        start = time.monotonic()
        yield
        self.durations[name] = round(time.monotonic() - start, 3)


BuildFunction = Callable[[Path, Stages], dict[str, Any]]
CommandLister = Callable[[Path], Iterable[Sequence[str]]]
CheckFunction = Callable[[Path], object]


def print_line(line: str) -> None:
    """Write one line to stdout at once. The host displays it while the build runs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_program(
    build: BuildFunction,
    *,
    description: str,
    stages: Iterable[str],
    list_commands: CommandLister | None = None,
    check: CheckFunction | None = None,
) -> int:
    """Run one build from the command line and return the exit status.

    `build` gets the request file and the stages. It returns the result without `schema` and
    `status`. An exception becomes a failed result; a BuildError gives its problem and remedy.
    `list_commands` returns the commands of a request. `--print-commands` prints them, runs nothing
    and refuses the same requests as the build. `check` raises the refusals that come before the
    first import of a library. `--check` runs nothing else.
    """
    if list_commands and "--print-commands" in sys.argv:
        return _print_commands(list_commands)
    if check and "--check" in sys.argv:
        return _run_check(check)
    arguments = _parse_arguments(description)
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, _exit_on_signal)
    for stream in (sys.stdout, sys.stderr):
        # Prompts in a message must not fail in an ASCII locale.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    arguments.result.unlink(missing_ok=True)
    progress = Stages(stages)
    try:
        result = {"status": "ok", **build(arguments.request, progress)}
    except Exception as error:
        problem = to_build_error(error, progress.current, arguments.request)
        sys.stderr.write(f"{problem.problem}\n{problem.remedy}\n")
        result = {"status": "failed", "problem": problem.problem, "remedy": problem.remedy}
    write_result(arguments.result, {"schema": RESULT_SCHEMA, **result})
    return 0 if result["status"] == "ok" else EXIT_FAILED


def _print_commands(list_commands: CommandLister) -> int:
    parser = argparse.ArgumentParser(description="Print the commands of a build.")
    parser.add_argument("--request", type=Path, required=True, help="the build request (JSON)")
    parser.add_argument("--print-commands", action="store_true", required=True)
    try:
        for command in list_commands(parser.parse_args().request):
            print_line(shlex.join(command))
    except BuildError as error:
        return _print_refusal(error)
    return 0


def _run_check(check: CheckFunction) -> int:
    parser = argparse.ArgumentParser(description="Check a build request; build nothing.")
    parser.add_argument("--request", type=Path, required=True, help="the build request (JSON)")
    parser.add_argument("--check", action="store_true", required=True)
    try:
        check(parser.parse_args().request)
    except BuildError as error:
        return _print_refusal(error)
    return 0


def _print_refusal(error: BuildError) -> int:
    sys.stderr.write(f"{error.problem}\n{error.remedy}\n")
    return EXIT_FAILED


def _parse_arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--request", type=Path, required=True, help="the build request (JSON)")
    parser.add_argument("--result", type=Path, required=True, help="where the result goes (JSON)")
    return parser.parse_args()


def to_build_error(error: Exception, stage: str, request: Path | None = None) -> BuildError:
    """Return the BuildError that reports `error`, raised in `stage`. request: the build request."""
    if isinstance(error, BuildError):
        return error
    traceback.print_exception(error)
    if isinstance(error, ImportError):
        return BuildError(
            f"the builder's environment is incomplete: {error}",
            remedy="Use the venv runner, or install what [environment] in builder.toml lists.",
        )
    if isinstance(error, MemoryError):
        return BuildError(
            f"the machine has too little memory (stage {stage})",
            remedy="A build needs about 10 bytes of memory per parameter: use a larger machine.",
        )
    if (problem := full_disk_error(error, stage, request)) is not None:
        return problem
    last_line = traceback.format_exception_only(error)[-1].strip()
    return BuildError(
        f"unexpected error in stage {stage}: {last_line}",
        remedy="The traceback is in build.log. If the checkpoint loads in transformers, report it.",
    )


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write the result file atomically."""
    temporary = path.with_name(f"{path.name}.tmp")
    text = json.dumps(result, indent=2, ensure_ascii=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    # Conversion libraries catch exceptions, and their threads outlive them.
    sys.stderr.write(f"interrupted by {signal.Signals(number).name}\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)

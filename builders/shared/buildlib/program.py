# SPDX-License-Identifier: Apache-2.0
"""What every builder's program is: `SCRIPT --request R.json --result S.json`.

The contract (request, result, progress lines, exit codes) is in builders/README.md. Standard
library only.
"""

import argparse
import errno
import json
import os
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from buildlib.problems import BuildError

RESULT_SCHEMA = "tritonctl.build-result/1"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
# Bytes. What could not be written whole lies there still: the disk is fuller than before.
_HARDLY_ANYTHING = 1 << 20


class Stages:
    """Names the running stage to the host and keeps how long each took, in seconds."""

    def __init__(self, names: Iterable[str]) -> None:
        self.durations = dict.fromkeys(names, 0.0)
        self.running = "check"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announce stage `name`, and time what runs inside."""
        self.running = name
        say(f"@stage {name}")
        start = time.monotonic()
        yield
        self.durations[name] = round(time.monotonic() - start, 3)


Build = Callable[[Path, Stages], dict[str, Any]]
Shown = Callable[[Path], Iterable[Sequence[str]]]
Check = Callable[[Path], object]


def say(line: str) -> None:
    """Write one line to stdout at once: the host shows it while the build runs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_program(
    build: Build,
    *,
    description: str,
    stages: Iterable[str],
    shown: Shown | None = None,
    check: Check | None = None,
) -> int:
    """Run one build as the command line asks; return the exit status.

    `shown` gives the commands that a request leads to: `--print-commands` then prints them,
    instead of running anything, and refuses what the build would. `check` raises what the build
    would refuse before it imports a library: `--check` runs only that.

    `build` gets the request's file and the stages, and returns the result without `schema` and
    `status`. What it raises becomes a failed result: a BuildError with its own words.
    """
    if shown and "--print-commands" in sys.argv:
        return _print_commands(shown)
    if check and "--check" in sys.argv:
        return _check(check)
    arguments = _arguments(description)
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, _interrupted)
    for stream in (sys.stdout, sys.stderr):
        # Prompts in a message must not fail in an ASCII locale.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    arguments.result.unlink(missing_ok=True)
    progress = Stages(stages)
    try:
        made = {"status": "ok", **build(arguments.request, progress)}
    except Exception as error:
        problem = failure(error, progress.running)
        sys.stderr.write(f"{problem.problem}\n{problem.remedy}\n")
        made = {"status": "failed", "problem": problem.problem, "remedy": problem.remedy}
    write_result(arguments.result, {"schema": RESULT_SCHEMA, **made})
    return 0 if made["status"] == "ok" else EXIT_FAILED


def _print_commands(shown: Shown) -> int:
    parser = argparse.ArgumentParser(description="Print the commands of a build.")
    parser.add_argument("--request", type=Path, required=True, help="the build request (JSON)")
    parser.add_argument("--print-commands", action="store_true", required=True)
    try:
        for command in shown(parser.parse_args().request):
            say(shlex.join(command))
    except BuildError as error:
        return _refused(error)
    return 0


def _check(check: Check) -> int:
    parser = argparse.ArgumentParser(description="Check a build request; build nothing.")
    parser.add_argument("--request", type=Path, required=True, help="the build request (JSON)")
    parser.add_argument("--check", action="store_true", required=True)
    try:
        check(parser.parse_args().request)
    except BuildError as error:
        return _refused(error)
    return 0


def _refused(error: BuildError) -> int:
    sys.stderr.write(f"{error.problem}\n{error.remedy}\n")
    return EXIT_FAILED


def _arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--request", type=Path, required=True, help="the build request (JSON)")
    parser.add_argument("--result", type=Path, required=True, help="where the result goes (JSON)")
    return parser.parse_args()


def failure(error: Exception, stage: str) -> BuildError:
    """Return the message for `error`, raised in `stage`."""
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
            f"the machine's memory does not suffice (stage {stage})",
            remedy="A build needs about 10 bytes of memory per parameter: use a larger machine.",
        )
    if _disk_is_full(error):
        return BuildError(
            f"no space left in {Path.cwd()} (stage {stage})",
            remedy="Free space there and build again; `tritonctl plan` says how much it takes, "
            "`tritonctl artefacts prune` removes engines that nothing needs.",
        )
    last = traceback.format_exception_only(error)[-1].strip()
    return BuildError(
        f"unexpected error in stage {stage}: {last}",
        remedy="The traceback is in build.log. If the checkpoint loads in transformers, report it.",
    )


def _disk_is_full(error: Exception) -> bool:
    """Whether that is the cause: libraries in C++ speak of streams, and keep no error number."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return shutil.disk_usage(Path.cwd()).free < _HARDLY_ANYTHING


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write the result so that it is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    text = json.dumps(result, indent=2, ensure_ascii=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def _interrupted(number: int, _frame: FrameType | None) -> None:
    # Not an exception: conversion libraries catch those, and their threads outlive them.
    sys.stderr.write(f"interrupted by {signal.Signals(number).name}\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)

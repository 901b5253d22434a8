# SPDX-License-Identifier: Apache-2.0
"""Build an OpenVINO engine: `python build.py --request R.json --result S.json`.

The working directory is a fresh staging folder, and nothing is written outside it but the result.
The contract (request, result, progress lines, exit codes) is in builders/README.md.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import artefact
from checkpoint import inspect_checkpoint, resolve_limits
from compare import require
from precisions import BLOCK_SIZE, PRECISIONS
from problems import BuildError
from prompts import load_tokenizer, read_prompts
from request import Request, read_request

SCHEMA = "tritonctl.build-result/1"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_PACKAGES = ("openvino", "openvino-genai", "optimum-intel", "nncf", "torch", "transformers")


class Stages:
    """Names the running stage to the host and keeps how long each took, in seconds."""

    def __init__(self) -> None:
        self.durations = dict.fromkeys(("load", "convert", "compress", "evaluate"), 0.0)
        self.running = "check"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announce stage `name`, and time what runs inside."""
        self.running = name
        say(f"@stage {name}")
        start = time.monotonic()
        yield
        self.durations[name] = round(time.monotonic() - start, 3)


def say(line: str) -> None:
    """Write one line to stdout at once: the host shows it while the build runs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def build(request: Request, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result, status ok.

    Raises:
        BuildError: the build cannot be done; anything else raised is a bug or the machine's.
    """
    checkpoint = inspect_checkpoint(request.checkpoint)
    limits = resolve_limits(request.limits, checkpoint)
    tokenizer = load_tokenizer(checkpoint.folder)
    prompts = read_prompts(request.evaluation, tokenizer, limits.max_seq_len)
    artefact.prepare()
    with stages.stage("load"):
        # Seconds that a checkpoint with a problem must not cost.
        import convert

        model = convert.load_model(request)
    with stages.stage("convert"):
        convert.export_model(model)
        del model
    with stages.stage("compress"):
        tensors = convert.compress_model(request)
        artefact.write_companions(checkpoint)
    outcome = None
    if prompts:
        with stages.stage("evaluate"):
            import evaluate

            # Loaded again: exporting patches the model it is given.
            model = convert.load_model(request)
            outcome = evaluate.evaluate(model, request, checkpoint, limits, prompts, tokenizer)
            del model
            say(f"{outcome.prompts - outcome.diverged} of {outcome.prompts} answers are equal")
            require(outcome, request)
    precision = PRECISIONS[request.precision]
    return {
        "schema": SCHEMA,
        "status": "ok",
        "files": artefact.files(),
        "tensors": tensors,
        "limits": dataclasses.asdict(limits),
        "model": checkpoint.described(),
        "runtime": {"properties": precision.properties, "block_size": BLOCK_SIZE},
        "versions": _versions(),
        "hardware": {"cpu": _cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "evaluation": dataclasses.asdict(outcome) if outcome else None,
    }


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {**versions, "python": platform.python_version()}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def failure(error: Exception, stage: str) -> BuildError:
    """Return what to tell the user about `error`, raised in `stage`."""
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
    last = traceback.format_exception_only(error)[-1].strip()
    return BuildError(
        f"unexpected error in stage {stage}: {last}",
        remedy="The traceback is in build.log. If the checkpoint loads in transformers, report it.",
    )


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


def main() -> int:
    """Run one build as the command line asks; return the exit status."""
    parser = argparse.ArgumentParser(description="Build an OpenVINO engine from a checkpoint.")
    parser.add_argument("--request", type=Path, required=True, help="the build request (JSON)")
    parser.add_argument("--result", type=Path, required=True, help="where the result goes (JSON)")
    arguments = parser.parse_args()
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, _interrupted)
    for stream in (sys.stdout, sys.stderr):
        # Prompts in a message must not fail in an ASCII locale.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    arguments.result.unlink(missing_ok=True)
    stages = Stages()
    try:
        result = build(read_request(arguments.request), stages)
    except Exception as error:
        problem = failure(error, stages.running)
        sys.stderr.write(f"{problem.problem}\n{problem.remedy}\n")
        result = {"schema": SCHEMA, "status": "failed"}
        result |= {"problem": problem.problem, "remedy": problem.remedy}
    write_result(arguments.result, result)
    return 0 if result["status"] == "ok" else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Runs of a builder's program as the host does them; what succeeded is kept for the next run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.builders.warm import run_warm
from tests.engine_cache import LOG_CHARACTERS, content, kept

_ANSWER = "answer.json"


@dataclass(frozen=True)
class Built:
    """One run of a builder's program: exit status, result, output, working directory."""

    code: int
    result: dict[str, Any]
    output: str
    staging: Path


class RefusedError(Exception):
    """A build that did not succeed is not kept: the machine may have been the reason."""

    def __init__(self, built: Built) -> None:
        super().__init__()
        self.built = built


def command(python: Path, program: Path, asked: Mapping[str, Any], folder: Path) -> list[str]:
    """Write a request into `folder` and return the command that runs it, in `folder/staging`."""
    (folder / "staging").mkdir()
    (folder / "R.json").write_text(json.dumps(asked), encoding="utf-8")
    files = ["--request", str(folder / "R.json"), "--result", str(folder / "S.json")]
    return [str(python), str(program), *files]


def run(python: Path, program: Path, asked: Mapping[str, Any], folder: Path) -> Built:
    """Run it now. AssertionError with the program's own words when it leaves no result."""
    done = subprocess.run(
        command(python, program, asked, folder),
        cwd=folder / "staging",
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return _built(program, folder, done)


def _built(program: Path, folder: Path, done: subprocess.CompletedProcess[str]) -> Built:
    try:
        result = json.loads((folder / "S.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        said = f"{done.stdout}{done.stderr}"[-LOG_CHARACTERS:]
        raise AssertionError(f"{program.name} ended with {done.returncode}:\n{said}") from error
    return Built(done.returncode, result, done.stdout, folder / "staging")


def run_kept(python: Path, program: Path, asked: Mapping[str, Any], folder: Path) -> Built:
    """The same, or what an equal run has left: same program, environment, request and files."""

    def make(entry: Path) -> None:
        work = folder / "run"
        work.mkdir()
        _, *arguments = command(python, program, asked, work)
        built = _built(program, work, run_warm(python, arguments, work / "staging"))
        if built.code:
            raise RefusedError(built)
        shutil.copytree(built.staging, entry / "staging")
        answer = {"result": built.result, "output": built.output}
        (entry / _ANSWER).write_text(json.dumps(answer), encoding="utf-8")

    inputs = {
        "program": program.name,
        "builder": content(program.parent),
        "shared": content(program.parents[1] / "shared"),
        "steps": content(program.parents[2] / "python_backends" / "tasklib"),
        "python": python.parents[1].name,  # has the environment's fingerprint in it
        "request": _by_content(asked),
    }
    try:
        entry = kept("run", inputs, make, folder / "kept")
    except RefusedError as refused:
        return refused.built
    answer = json.loads((entry / _ANSWER).read_text(encoding="utf-8"))
    return Built(0, answer["result"], answer["output"], entry / "staging")


def _by_content(value: Any) -> Any:
    """A request whose paths are replaced by what they hold."""
    if isinstance(value, Mapping):
        return {key: _by_content(inner) for key, inner in value.items()}
    if isinstance(value, str) and value.startswith("/"):
        return content(Path(value))
    return value

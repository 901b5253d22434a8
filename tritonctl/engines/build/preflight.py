# SPDX-License-Identifier: Apache-2.0
"""Asks a builder's program what it would refuse, before an environment is made or a file hashed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tritonctl.engines.build.contract import BuildRequest
from tritonctl.engines.build.stages import asked_of_builder, request_of
from tritonctl.errors import BuildFailedError
from tritonctl.project.schema import Project

_SECONDS = 120


def check_request(project: Project, name: str) -> None:
    """Check what a model asks of its builder, by the builder's own rules.

    Raises ConfigurationError, or BuildFailedError with the words of the builder.
    """
    asked = asked_of_builder(project, name)
    source: Path | None = None
    for stage in asked.stages:
        request = request_of(asked, stage, source)
        if stage.checks_requests:
            ask_program(name, asked.builder.program(stage), request, "--check")
        # Where the stage before would leave its artefact: nothing is there yet.
        source = project.state / "engines" / name / stage.name


def ask_program(name: str, script: Path, request: BuildRequest, question: str) -> str:
    """What a builder's program prints for a request. Raises BuildFailedError if it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "request.json")
        record = request.model_dump(by_alias=True, mode="json")
        file.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, script, "--request", file, question],
            cwd=folder,
            env=os.environ | {"PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            check=False,
            timeout=_SECONDS,
        )
    if done.returncode:
        problem, _, remedy = done.stderr.strip().partition("\n")
        raise BuildFailedError(
            f"{name}: {problem or 'refused'}", remedy=remedy or "see builders/README.md"
        )
    return done.stdout

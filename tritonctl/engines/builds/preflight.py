# SPDX-License-Identifier: Apache-2.0
"""Validates requests with the builder's program before creating environments or hashing files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tritonctl.engines.builds.contract import BuildRequest
from tritonctl.engines.builds.stages import ResolvedBuild, stage_request
from tritonctl.errors import BuildFailedError
from tritonctl.project.schema import Project

_SECONDS = 120


def check_requests(project: Project, name: str, resolved: ResolvedBuild) -> None:
    """Check the request of each stage with its builder's program.

    Raises ConfigurationError, or BuildFailedError with the builder's message.
    """
    source: Path | None = None
    for stage in resolved.stages:
        request = stage_request(resolved, stage, source)
        if stage.checks_requests:
            query_program(name, resolved.builder.program(stage), request, "--check")
        # The future folder of this stage's artefact; it does not exist yet.
        source = project.state / "engines" / name / stage.name


def query_program(name: str, script: Path, request: BuildRequest, option: str) -> str:
    """Return the output of a builder's program for a request. Raises BuildFailedError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "request.json")
        record = request.model_dump(by_alias=True, mode="json")
        file.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
        process = subprocess.run(
            [sys.executable, script, "--request", file, option],
            cwd=folder,
            env=os.environ | {"PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            check=False,
            timeout=_SECONDS,
        )
    if process.returncode:
        problem, _, remedy = process.stderr.strip().partition("\n")
        raise BuildFailedError(
            f"{name}: {problem or 'refused'}", remedy=remedy or "see builders/README.md"
        )
    return process.stdout

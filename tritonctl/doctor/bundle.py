# SPDX-License-Identifier: Apache-2.0
"""A report for others: doctor's findings, versions, settings, logs; no secrets.

Only the text listed here goes in, all of it through `Redaction`; never weights, keys or
certificates, and never the environment.
"""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tritonctl.doctor.findings import Report
from tritonctl.host.files import PRIVATE, explained, read_record
from tritonctl.host.redaction import REMOVED, Redaction
from tritonctl.host.version import __version__
from tritonctl.project.file import FILE_NAME
from tritonctl.project.schema import Project
from tritonctl.repository.contents import CONFIG
from tritonctl.server.log import tail
from tritonctl.server.state import ServerFiles, read_state

_LOG_LINES = 2000
_LARGEST_BYTES = 4 << 20


def write_bundle(target: Path, report: Report, project: Project | None) -> list[str]:
    """Write a .tar.gz that only its owner may read; returns the names in it. Raises HostError."""
    redaction = _redaction(project, os.environ)
    pieces = dict(_pieces(report, project))
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with explained(target):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
            with (
                os.fdopen(descriptor, "wb") as file,
                tarfile.open(fileobj=file, mode="w:gz") as tar,
            ):
                for name, text in pieces.items():
                    _add(tar, redaction(name), redaction(text))
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    return [redaction(name) for name in pieces]


def _redaction(project: Project | None, environment: Mapping[str, str]) -> Redaction:
    if project is None:
        return Redaction.of(environment, ())
    state = read_state(ServerFiles.of(project))
    tenants = project.gateway.tenants.values() if project.gateway else ()
    keys = [project.path(tenant.api_key_file) for tenant in tenants]
    if project.gateway and project.gateway.frontend_secret_file:
        keys.append(project.path(project.gateway.frontend_secret_file))
    return Redaction.of(environment, keys, [state.token] if state else [])


def _pieces(report: Report, project: Project | None) -> Iterator[tuple[str, str]]:
    yield "report.json", json.dumps(report.as_record(), indent=2)
    yield "versions.json", json.dumps(_versions(), indent=2)
    if project is None:
        return
    yield from _text("project/tritonctl.yaml", project.root / FILE_NAME)
    yield from _text("project/tritonctl.lock", project.root / "tritonctl.lock")
    yield from _server(ServerFiles.of(project))
    for file in sorted((project.state / "engines").glob("*/*/manifest.json")):
        yield from _text(f"engines/{file.parent.parent.name}/{file.parent.name}.json", file)
    for file in sorted(project.repository.glob(f"*/{CONFIG}")):
        yield from _text(f"model_repository/{file.parent.name}.pbtxt", file)


def _versions() -> dict[str, Any]:
    packages = {package.name: package.version for package in metadata.distributions()}
    return {
        "tritonctl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "packages": dict(sorted(packages.items())),
    }


def _server(files: ServerFiles) -> Iterator[tuple[str, str]]:
    for log in (files.log, files.log.with_suffix(".previous.log")):
        if lines := tail(log, _LOG_LINES):
            yield f"server/{log.name}", "\n".join(lines)
    for file in (files.state, files.specification):
        yield from _record(f"server/{file.name}", file)
    for file in (files.restarts, files.exit):
        yield from _text(f"server/{file.name}", file)


def _record(name: str, file: Path) -> Iterator[tuple[str, str]]:
    """JSON without its secret fields: the token, a process's environment."""
    if record := read_record(file):
        kept = {k: REMOVED if k in ("token", "environment") else v for k, v in record.items()}
        yield name, json.dumps(kept, indent=2)


def _text(name: str, file: Path) -> Iterator[tuple[str, str]]:
    try:
        if file.stat().st_size <= _LARGEST_BYTES:
            yield name, file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return


def _add(tar: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(f"tritonctl-report/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
    tar.addfile(entry, io.BytesIO(content))

# SPDX-License-Identifier: Apache-2.0
"""Write a report to share: doctor's findings, versions, settings and logs, without secrets.

It contains only the texts listed here, all redacted by `Redaction`: no weights, keys, certificates
or environment variables.
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

from tritonctl.doctor.findings import DoctorReport
from tritonctl.host.files import PRIVATE, as_host_error, read_record
from tritonctl.host.redaction import REMOVED, Redaction
from tritonctl.host.version import __version__
from tritonctl.project.file import FILE_NAME
from tritonctl.project.schema import Project
from tritonctl.repository.contents import CONFIG
from tritonctl.runtimes.server_log import tail
from tritonctl.runtimes.server_state import ServerFiles, read_state

_LOG_LINES = 2000
_MAX_FILE_BYTES = 4 << 20


def write_bundle(target: Path, report: DoctorReport, project: Project | None) -> list[str]:
    """Write a .tar.gz readable by its owner only; return its file names. Raises HostError."""
    redaction = _redaction(project, os.environ)
    pieces = dict(_report_files(report, project))
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with as_host_error(target):
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
    if project.frontend:
        keys += [project.path(file) for file in project.frontend.secret_files.values()]
    return Redaction.of(environment, keys, [state.token] if state else [])


def _report_files(report: DoctorReport, project: Project | None) -> Iterator[tuple[str, str]]:
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
    for file in (files.state, files.state_copy, files.specification):
        yield from _record(f"server/{file.name}", file)
    for file in (files.restarts, files.exit):
        yield from _text(f"server/{file.name}", file)


def _record(name: str, file: Path) -> Iterator[tuple[str, str]]:
    """Yield a JSON file without its secret fields: token and process environment."""
    if record := read_record(file):
        public_fields = {
            k: REMOVED if k in ("token", "environment") else v for k, v in record.items()
        }
        yield name, json.dumps(public_fields, indent=2)


def _text(name: str, file: Path) -> Iterator[tuple[str, str]]:
    try:
        if file.stat().st_size <= _MAX_FILE_BYTES:
            yield name, file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return


def _add(tar: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(f"tritonctl-report/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
    tar.addfile(entry, io.BytesIO(content))

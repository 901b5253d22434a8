# SPDX-License-Identifier: Apache-2.0
"""What this machine has, and what of tritonctl and of a project it can run."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

from tritonctl.doctor.docker import container_findings
from tritonctl.doctor.findings import Finding, Report
from tritonctl.doctor.graphics import gpu_finding, gpu_report, needed_findings
from tritonctl.doctor.machine import (
    clock_finding,
    clock_synchronised,
    disk_finding,
    glibc_finding,
    libpython_finding,
    newest_file,
    open_files_finding,
    open_files_limits,
    python_finding,
    shm_finding,
)
from tritonctl.doctor.profiles import Profiles
from tritonctl.host.files import cache_folder
from tritonctl.host.gpus import installed_gpus
from tritonctl.host.interpreters import find, running
from tritonctl.host.resources import SHARED_MEMORY
from tritonctl.project.compatibility.table import table
from tritonctl.repository.server_environment import PYTHONS


def examine(projects: Profiles | None = None, seen: Sequence[Finding] = ()) -> Report:
    """Examine this machine and, given a project's profiles, what they need of it.

    `seen`: findings so far.

    Raises ConfigurationError when the project's own compatibility table is malformed.
    """
    projects = projects or {}
    base = projects.get(None)
    compatibility = table(base.root if base else None)
    gpus, reason = installed_gpus()
    findings = [
        *seen,
        *_machine_findings(base.state / "server" if base else cache_folder()),
        *container_findings(gpus),
        gpu_finding(gpus, reason),
        *needed_findings(projects, gpus, compatibility),
    ]
    if base:
        from tritonctl.doctor.server import server_findings

        findings += server_findings(base, compatibility)
    return Report(findings, [gpu_report(gpu, compatibility) for gpu in gpus])


def _machine_findings(written: Path) -> list[Finding]:
    server = find(PYTHONS, shared=True)
    return [
        python_finding(running(), server),
        glibc_finding(platform.libc_ver()),
        libpython_finding(server or running()),
        disk_finding(cache_folder()),
        shm_finding(SHARED_MEMORY),
        *([open_files_finding(limits)] if (limits := open_files_limits()) else []),
        clock_finding(clock_synchronised(), newest_file(written), time.time()),
    ]

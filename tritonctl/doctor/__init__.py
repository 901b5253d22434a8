# SPDX-License-Identifier: Apache-2.0
"""Examine this machine: what tritonctl and a project can run on it."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

from tritonctl.doctor.docker import container_findings
from tritonctl.doctor.findings import DoctorFinding, DoctorReport
from tritonctl.doctor.gpus import engine_gpu_findings, gpu_finding, gpu_report
from tritonctl.doctor.machine import (
    clock_finding,
    disk_finding,
    glibc_finding,
    is_clock_synchronised,
    libpython_finding,
    newest_file,
    open_files_finding,
    open_files_limits,
    shm_finding,
    stub_python_finding,
)
from tritonctl.doctor.profiles import Profiles
from tritonctl.host.files import cache_folder
from tritonctl.host.gpus import installed_gpus
from tritonctl.host.interpreters import current_interpreter, find_interpreter
from tritonctl.host.resources import SHARED_MEMORY
from tritonctl.project.compatibility.table import table
from tritonctl.repository.server_environment import PYTHONS


def examine(
    projects: Profiles | None = None, previous: Sequence[DoctorFinding] = ()
) -> DoctorReport:
    """Examine this machine and the requirements of a project's profiles, if given.

    previous: earlier findings, which come first. Raises ConfigurationError if the project's
    compatibility table is malformed.
    """
    projects = projects or {}
    base = projects.get(None)
    compatibility = table(base.root if base else None)
    gpus, reason = installed_gpus()
    findings = [
        *previous,
        *_machine_findings(base.state / "server" if base else cache_folder()),
        *container_findings(gpus),
        gpu_finding(gpus, reason),
        *engine_gpu_findings(projects, gpus, compatibility),
    ]
    if base:
        from tritonctl.doctor.server import server_findings

        findings += server_findings(base, compatibility)
    return DoctorReport(findings, [gpu_report(gpu, compatibility) for gpu in gpus])


def _machine_findings(written: Path) -> list[DoctorFinding]:
    server = find_interpreter(PYTHONS, shared=True)
    return [
        stub_python_finding(current_interpreter(), server),
        glibc_finding(platform.libc_ver()),
        libpython_finding(server or current_interpreter()),
        disk_finding(cache_folder()),
        shm_finding(SHARED_MEMORY),
        *([open_files_finding(limits)] if (limits := open_files_limits()) else []),
        clock_finding(is_clock_synchronised(), newest_file(written), time.time()),
    ]

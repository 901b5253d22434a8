# SPDX-License-Identifier: Apache-2.0
"""This machine: Python, C library, disk, shared memory, open files, clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
from pathlib import Path

from packaging.version import Version

from tritonctl.doctor.findings import Finding
from tritonctl.host.interpreters import Interpreter, how_to_get
from tritonctl.repository.server_environment import PYTHONS

_GLIBC = "2.35"
_MIB, _GIB = 1 << 20, 1 << 30
# An environment with torch and OpenVINO takes about 4 GiB, the server's about 1.
_LEAST_GIB, _EASY_GIB = 6, 40
# A text model's three stubs take 3 MiB at rest and grow with their tensors; Docker gives 64.
_LEAST_SHM_MIB, _EASY_SHM_MIB = 32, 256
# A connection is a descriptor, and a stub has a few dozen.
_LEAST_FILES = 4096
_UNSYNCHRONISED, _TIME_ERROR = 0x40, 5  # STA_UNSYNC, and what adjtimex then returns
_STATUS_OFFSET, _TIMEX_BYTES = 40, 256
_BACK_SECONDS = 60
_UNLIMITED = -1  # RLIM_INFINITY

_WHY_SHM = "Triton passes tensors to Python models there; when it is full, requests fail"
_WHY_CLOCK = "certificates, logs, traces and load tests across machines depend on it"


def python_finding(here: Interpreter, server: Interpreter | None) -> Finding:
    """Triton's stubs embed some versions of Python; the embedded server may use another one."""
    why = "the stubs of the embedded server embed it"
    if server is None:
        detail = f"{here}; the embedded server needs {PYTHONS}"
        remedy = f"{how_to_get(PYTHONS)}; or serve with `server.mode: docker`"
        return Finding("Python", "missing", detail, remedy, required=True, why=why)
    detail = str(here) if server == here else f"{here}; for the embedded server {server}"
    return Finding("Python", "ok", detail, required=True, why=why)


def glibc_finding(library: tuple[str, str]) -> Finding:
    """The embedded server's binaries need a glibc of 2022 or later."""
    name, version = library
    library_name = f"{name} {version}".strip() or "another C library"
    why = "the embedded server's binaries are linked to it"
    if name == "glibc" and Version(version) >= Version(_GLIBC):
        return Finding("C library", "ok", library_name, required=True, why=why)
    return Finding(
        "C library",
        "missing",
        f"{library_name}, the embedded server needs glibc {_GLIBC}",
        "use Debian 12, Ubuntu 22.04, or later; or serve with `server.mode: docker`",
        required=True,
        why=why,
    )


def libpython_finding(python: Interpreter) -> Finding:
    """Triton's Python stub links to libpython."""
    version = python.minor
    why = "tokenizer, engine and detokenizer run in stubs that link to it"
    if python.libraries:
        library = str(python.libraries[0] / f"libpython{version}.so.1.0")
        return Finding("shared libpython", "ok", library, required=True, why=why)
    return Finding(
        "shared libpython",
        "missing",
        f"no libpython{version}.so: Triton's Python backend cannot start",
        f"`apt install libpython{version}`; with pyenv, build with --enable-shared",
        required=True,
        why=why,
    )


def disk_finding(folder: Path) -> Finding:
    """Environments and engines are gigabytes."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / _GIB
    detail = f"{free:.0f} GiB free in {folder}"
    why = "environments and engines are gigabytes"
    if free < _LEAST_GIB:
        remedy = f"free space there, or set TRITONCTL_CACHE_DIR; {_LEAST_GIB} GiB are needed"
        return Finding("disk", "missing", detail, remedy, required=True, why=why)
    if free < _EASY_GIB:
        remedy = "an engine of a large model, or a TensorRT-LLM image (30 GB), may not fit"
        return Finding("disk", "warning", detail, remedy, required=True, why=why)
    return Finding("disk", "ok", detail, required=True, why=why)


def shm_finding(folder: Path) -> Finding:
    """Where Triton and its Python stubs exchange tensors."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        remedy = f"mount -t tmpfs -o size=1g tmpfs {folder}"
        detail = f"{folder} does not exist"
        return Finding("shared memory", "missing", detail, remedy, required=True, why=_WHY_SHM)
    detail = f"{usage.free / _MIB:.0f} of {usage.total / _MIB:.0f} MiB free in {folder}"
    if usage.free >= _EASY_SHM_MIB * _MIB:
        return Finding("shared memory", "ok", detail, required=True, why=_WHY_SHM)
    few = usage.free < _LEAST_SHM_MIB * _MIB
    return Finding(
        "shared memory",
        "missing" if few else "warning",
        detail,
        f"mount -o remount,size=1g {folder} (in a container: `docker.shm_size: 1g` of "
        f"tritonctl.yaml); `ls -l {folder}` shows who uses it",
        required=True,
        why=_WHY_SHM,
    )


def open_files_limits() -> tuple[int, int] | None:
    """How many file descriptors a process may have, softly and at most; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def open_files_finding(limits: tuple[int, int]) -> Finding:
    """How many file descriptors a server started here may have."""
    soft, hard = limits
    shown = "unlimited" if soft == _UNLIMITED else str(soft)
    why = "each connection is an open file; at the limit Triton accepts no new client"
    if soft == _UNLIMITED or soft >= _LEAST_FILES:
        return Finding("open files", "ok", f"at most {shown}", why=why)
    reachable = hard == _UNLIMITED or hard >= _LEAST_FILES
    remedy = f"ulimit -n {_LEAST_FILES * 16 if hard == _UNLIMITED else hard}"
    if not reachable:
        remedy = "raise `nofile` in /etc/security/limits.conf, then log in again"
    return Finding("open files", "warning", f"at most {shown}", remedy, why=why)


def clock_finding(synchronised: bool | None, newest: float, now: float) -> Finding:
    """Whether the clock is synchronised, and whether it went back.

    `newest`: when tritonctl's youngest file was written.
    """
    if newest - now > _BACK_SECONDS:
        detail = f"{newest - now:.0f} s behind files that were already written"
        return Finding("clock", "warning", detail, "timedatectl set-ntp true", why=_WHY_CLOCK)
    if synchronised is None:
        detail = "the kernel does not say whether it is synchronised"
        return Finding("clock", "ok", detail, why=_WHY_CLOCK)
    if synchronised:
        return Finding("clock", "ok", "synchronised, says the kernel", why=_WHY_CLOCK)
    detail = "not synchronised, says the kernel"
    remedy = (
        "timedatectl set-ntp true; in a virtual machine or container the host may synchronise it"
    )
    return Finding("clock", "warning", detail, remedy, why=_WHY_CLOCK)


def clock_synchronised() -> bool | None:
    """What adjtimex(2) says of the kernel's clock; None when it cannot be asked."""
    state = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(state)
    except (AttributeError, TypeError, OSError):  # macOS, Windows
        return None
    if answer < 0:
        return None
    (status,) = struct.unpack_from("i", state.raw, _STATUS_OFFSET)
    return not (status & _UNSYNCHRONISED or answer == _TIME_ERROR)


def newest_file(folder: Path) -> float:
    """When the youngest file of a folder was written; 0 without files."""
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(folder)), default=0.0)
    except OSError:
        return 0.0

# SPDX-License-Identifier: Apache-2.0
"""Check this machine: Python, C library, disk, shared memory, open files, clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
from pathlib import Path

from packaging.version import Version

from tritonctl.doctor.findings import DoctorFinding
from tritonctl.host.interpreters import Interpreter, install_hint
from tritonctl.repository.server_environment import PYTHONS

_GLIBC = "2.35"
_MIB, _GIB = 1 << 20, 1 << 30
# An environment with torch and OpenVINO takes about 4 GiB, the server's about 1.
_MIN_GIB, _COMFORTABLE_GIB = 6, 40
# A text model's three stubs use 3 MiB when idle and grow with their tensors; Docker grants 64.
_MIN_SHM_MIB, _COMFORTABLE_SHM_MIB = 32, 256
# A connection uses one descriptor, a stub a few dozen.
_MIN_OPEN_FILES = 4096
_UNSYNCHRONISED, _TIME_ERROR = 0x40, 5  # STA_UNSYNC, and what adjtimex then returns
_STATUS_OFFSET, _TIMEX_BYTES = 40, 256
_MAX_BACKSTEP_SECONDS = 60
_UNLIMITED = -1  # RLIM_INFINITY

_SHM_REASON = "Triton passes tensors to Python models there; when it is full, requests fail"
_CLOCK_REASON = "certificates, logs, traces and load tests across machines depend on it"


def stub_python_finding(
    current: Interpreter, stub_interpreter: Interpreter | None
) -> DoctorFinding:
    """Check the Python that Triton's stubs embed, which may differ from the current one."""
    reason = "the embedded server's Python stubs link to this interpreter"
    if stub_interpreter is None:
        detail = f"{current}; the embedded server needs {PYTHONS}"
        remedy = f"{install_hint(PYTHONS)}; or serve with `server.mode: docker`"
        return DoctorFinding("Python", "missing", detail, remedy, required=True, reason=reason)
    detail = str(current)
    if stub_interpreter != current:
        detail += f"; for the embedded server {stub_interpreter}"
    return DoctorFinding("Python", "ok", detail, required=True, reason=reason)


def glibc_finding(library: tuple[str, str]) -> DoctorFinding:
    """Check glibc: the embedded server's binaries need 2.35 or later."""
    name, version = library
    library_name = f"{name} {version}".strip() or "another C library"
    reason = "the embedded server's binaries are linked to it"
    if name == "glibc" and Version(version) >= Version(_GLIBC):
        return DoctorFinding("C library", "ok", library_name, required=True, reason=reason)
    return DoctorFinding(
        "C library",
        "missing",
        f"{library_name}, the embedded server needs glibc {_GLIBC}",
        "use Debian 12, Ubuntu 22.04, or later; or serve with `server.mode: docker`",
        required=True,
        reason=reason,
    )


def libpython_finding(python: Interpreter) -> DoctorFinding:
    """Check for the shared libpython, which Triton's Python stub links to."""
    version = python.minor
    reason = "tokenizer, engine and detokenizer run in stubs that link to it"
    if python.libraries:
        library = str(python.libraries[0] / f"libpython{version}.so.1.0")
        return DoctorFinding("shared libpython", "ok", library, required=True, reason=reason)
    return DoctorFinding(
        "shared libpython",
        "missing",
        f"no libpython{version}.so: Triton's Python backend cannot start",
        f"`apt install libpython{version}`; with pyenv, build with --enable-shared",
        required=True,
        reason=reason,
    )


def disk_finding(folder: Path) -> DoctorFinding:
    """Check the free disk space for environments and engines."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / _GIB
    detail = f"{free:.0f} GiB free in {folder}"
    reason = "environments and engines take gigabytes"
    if free < _MIN_GIB:
        remedy = f"free space there, or set TRITONCTL_CACHE_DIR; {_MIN_GIB} GiB are needed"
        return DoctorFinding("disk", "missing", detail, remedy, required=True, reason=reason)
    if free < _COMFORTABLE_GIB:
        remedy = "an engine of a large model, or a TensorRT-LLM image (30 GB), may not fit"
        return DoctorFinding("disk", "warning", detail, remedy, required=True, reason=reason)
    return DoctorFinding("disk", "ok", detail, required=True, reason=reason)


def shm_finding(folder: Path) -> DoctorFinding:
    """Check the shared memory, in which Triton and its Python stubs exchange tensors."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        remedy = f"mount -t tmpfs -o size=1g tmpfs {folder}"
        detail = f"{folder} does not exist"
        return DoctorFinding(
            "shared memory", "missing", detail, remedy, required=True, reason=_SHM_REASON
        )
    detail = f"{usage.free / _MIB:.0f} of {usage.total / _MIB:.0f} MiB free in {folder}"
    if usage.free >= _COMFORTABLE_SHM_MIB * _MIB:
        return DoctorFinding("shared memory", "ok", detail, required=True, reason=_SHM_REASON)
    is_low = usage.free < _MIN_SHM_MIB * _MIB
    return DoctorFinding(
        "shared memory",
        "missing" if is_low else "warning",
        detail,
        f"mount -o remount,size=1g {folder} (in a container: `docker.shm_size: 1g` of "
        f"tritonctl.yaml); `ls -l {folder}` lists its users",
        required=True,
        reason=_SHM_REASON,
    )


def open_files_limits() -> tuple[int, int] | None:
    """Return the soft and hard limits on file descriptors; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def open_files_finding(limits: tuple[int, int]) -> DoctorFinding:
    """Check the limit on file descriptors of a server started here."""
    soft, hard = limits
    limit_text = "unlimited" if soft == _UNLIMITED else str(soft)
    reason = "each connection is an open file; at the limit Triton accepts no new client"
    if soft == _UNLIMITED or soft >= _MIN_OPEN_FILES:
        return DoctorFinding("open files", "ok", f"at most {limit_text}", reason=reason)
    reachable = hard == _UNLIMITED or hard >= _MIN_OPEN_FILES
    remedy = f"ulimit -n {_MIN_OPEN_FILES * 16 if hard == _UNLIMITED else hard}"
    if not reachable:
        remedy = "raise `nofile` in /etc/security/limits.conf, then log in again"
    return DoctorFinding("open files", "warning", f"at most {limit_text}", remedy, reason=reason)


def clock_finding(synchronised: bool | None, newest: float, now: float) -> DoctorFinding:
    """Check whether the clock is synchronised, and whether it went backwards.

    newest: modification time of tritonctl's newest file.
    """
    if newest - now > _MAX_BACKSTEP_SECONDS:
        detail = f"{newest - now:.0f} s behind existing files"
        return DoctorFinding(
            "clock", "warning", detail, "timedatectl set-ntp true", reason=_CLOCK_REASON
        )
    if synchronised is None:
        detail = "the kernel does not report whether it is synchronised"
        return DoctorFinding("clock", "ok", detail, reason=_CLOCK_REASON)
    if synchronised:
        return DoctorFinding(
            "clock", "ok", "synchronised, according to the kernel", reason=_CLOCK_REASON
        )
    detail = "not synchronised, according to the kernel"
    remedy = (
        "timedatectl set-ntp true; in a virtual machine or container the host may synchronise it"
    )
    return DoctorFinding("clock", "warning", detail, remedy, reason=_CLOCK_REASON)


def is_clock_synchronised() -> bool | None:
    """Return whether the kernel's clock is synchronised, by adjtimex(2); None without it."""
    state = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        clock_state = ctypes.CDLL(None, use_errno=True).adjtimex(state)
    except (AttributeError, TypeError, OSError):  # macOS, Windows
        return None
    if clock_state < 0:
        return None
    (status,) = struct.unpack_from("i", state.raw, _STATUS_OFFSET)
    return not (status & _UNSYNCHRONISED or clock_state == _TIME_ERROR)


def newest_file(folder: Path) -> float:
    """Return the modification time of a folder's newest file; 0 without files."""
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(folder)), default=0.0)
    except OSError:
        return 0.0

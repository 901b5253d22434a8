# SPDX-License-Identifier: Apache-2.0
"""Launch a foreign program: this module runs as a process, prepares it, then execs the program.

`preexec_fn` would prepare a forked copy of the supervisor, in which other threads are gone but
their locks and gRPC's fork handlers remain: such a child may hang or die before it execs. Standard
library only: the module runs in containers, too.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

with suppress(ImportError):  # Windows, where the launcher is not used
    import resource

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
# Of each machine: the kernel's name of the system call interface, and the numbers of two calls.
_SECCOMP = {"x86_64": (0xC000003E, 317, 91), "aarch64": (0xC00000B7, 277, 52)}
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
_BOOST_MODE = 0o644
# The exit codes of a shell for a missing program and for a file it cannot execute.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@contextmanager
def launcher_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stack_bytes: int = 0,
    die_with_parent: bool = True,
    private_files: bool = False,
) -> Iterator[tuple[list[str], int]]:
    """Yield the command that execs `argv`, and the file descriptor to pass to it; Linux only.

    Start the command inside the block: afterwards the descriptor is closed.

    SIGTERM and SIGINT, which a supervisor blocks, reach the program. environment: None inherits.
    stack_bytes: minimum stack size, up to the hard limit; 0 inherits. die_with_parent: the kernel
    sends SIGTERM if the starting thread dies. private_files: other users may not read the files and
    the shared memory that the program creates. If `argv` cannot start, the command writes an error
    to standard error and exits with a shell's exit code.
    """
    record = {
        "argv": [*argv],
        "environment": {**(os.environ if environment is None else environment)},
        "stack_bytes": stack_bytes,
        "parent": os.getpid() if die_with_parent else None,
        "private_files": private_files,
    }
    record_fd = os.memfd_create("tritonctl")  # command lines are public, and it may hold secrets
    try:
        with os.fdopen(os.dup(record_fd), "w", encoding="utf-8") as file:
            json.dump(record, file)
        yield [sys.executable, "-I", "-S", __file__, str(record_fd)], record_fd
    finally:
        os.close(record_fd)


def main(record_fd: int) -> int:
    """Exec the program; return an exit code if that fails."""
    os.lseek(record_fd, 0, os.SEEK_SET)
    with os.fdopen(record_fd, encoding="utf-8") as file:
        record = json.load(file)
    _prepare_process(record)
    argv = record["argv"]
    try:
        os.execvpe(argv[0], argv, record["environment"])  # noqa: S606 - no shell
    except OSError as error:
        os.write(2, f"tritonctl: cannot start {argv[0]}: {error.strerror}\n".encode())
        return _NOT_FOUND if error.errno == errno.ENOENT else _NOT_EXECUTABLE


def _prepare_process(record: Mapping[str, Any]) -> None:
    if stack_bytes := record["stack_bytes"]:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_STACK)
        stack = (
            stack_bytes if hard_limit == resource.RLIM_INFINITY else min(hard_limit, stack_bytes)
        )
        resource.setrlimit(resource.RLIMIT_STACK, (stack, hard_limit))
    if record["private_files"]:
        os.umask(0o077)
        _ignore_open_modes()
    # Undo Python's signal settings, which the program would inherit.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if (parent := record["parent"]) is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before prctl
            os.kill(os.getpid(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _ignore_open_modes() -> None:
    """Let fchmod(2) to 0644 succeed without effect, in this process and its descendants.

    Boost, with which Triton's Python backend makes its shared memory, sets that mode after
    shm_open(), past the umask. A mode that is set later leaves a moment in which somebody can open
    the region and keep it. Where the kernel has no seccomp, the regions stay readable.
    """
    if (numbers := _SECCOMP.get(platform.machine())) is None:
        return
    architecture, seccomp, fchmod = numbers
    load, equal, result = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    code = [
        (load, 0, 0, 4),  # offset of `arch` in struct seccomp_data
        (equal, 0, 5, architecture),
        (load, 0, 0, 0),  # `nr`
        (equal, 0, 3, fchmod),
        (load, 0, 0, 24),  # `args[1]`, the mode
        (equal, 0, 1, _BOOST_MODE),
        (result, 0, 0, 0x00050000),  # SECCOMP_RET_ERRNO with error 0: success
        (result, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    ]
    instructions = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    )
    program = struct.pack("@HP", len(code), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # without it only root may set a filter
    # The flag keeps the processor's speculation, whose loss would slow the engines down.
    libc.syscall(seccomp, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW, program)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

# SPDX-License-Identifier: Apache-2.0
"""How a supervisor begins a program that is not ours: this module runs first, and becomes it.

In between it sets what the program begins with. `preexec_fn` would do that in a copy of a process
whose other threads are gone, with whatever locks they held, and gRPC's handlers of forks: such a
child may hang or die before it is anything. Standard library only: it runs in containers, too.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

with suppress(ImportError):  # Windows, where nothing is begun this way
    import resource

STOPPING = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1
# As a shell says that there is no such program, and that it is none.
_MISSING, _UNUSABLE = 127, 126


@contextmanager
def becoming(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stack_bytes: int = 0,
    ends_with_us: bool = True,
) -> Iterator[tuple[list[str], int]]:
    """The command that becomes `argv`, and the file descriptor that it needs; on Linux.

    SIGTERM and SIGINT, which a supervisor holds back, reach the program. environment: its own; None
    is ours. stack_bytes: at least, as far as it may; 0: as ours. ends_with_us: if the thread that
    starts it dies, the kernel sends it SIGTERM. What cannot be started says so on its standard
    error, and has the status that a shell gives it.
    """
    record = {
        "argv": [*argv],
        "environment": {**(os.environ if environment is None else environment)},
        "stack_bytes": stack_bytes,
        "parent": os.getpid() if ends_with_us else None,
    }
    needs = os.memfd_create("tritonctl")  # not on its command line, which everybody reads
    try:
        with os.fdopen(os.dup(needs), "w", encoding="utf-8") as file:
            json.dump(record, file)
        yield [sys.executable, "-I", "-S", __file__, str(needs)], needs
    finally:
        os.close(needs)


def main(needs: int) -> int:
    """Become the program; returns only where that is not possible."""
    os.lseek(needs, 0, os.SEEK_SET)
    with os.fdopen(needs, encoding="utf-8") as file:
        record = json.load(file)
    _prepare(record)
    argv = record["argv"]
    try:
        os.execvpe(argv[0], argv, record["environment"])  # noqa: S606 - none is wanted
    except OSError as error:
        os.write(2, f"tritonctl: cannot start {argv[0]}: {error.strerror}\n".encode())
        return _MISSING if error.errno == errno.ENOENT else _UNUSABLE


def _prepare(record: Mapping[str, Any]) -> None:
    if stack_bytes := record["stack_bytes"]:
        _, most = resource.getrlimit(resource.RLIMIT_STACK)
        stack = stack_bytes if most == resource.RLIM_INFINITY else min(most, stack_bytes)
        resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    # What Python has changed for itself; the program would inherit it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if (parent := record["parent"]) is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before that
            os.kill(os.getpid(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

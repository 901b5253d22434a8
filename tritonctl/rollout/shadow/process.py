# SPDX-License-Identifier: Apache-2.0
"""The shadower beside a rollout's controller: a process that ends with it, and is started again.

A shadower that cannot run takes nothing from anybody: users have their answers, and the judge goes
on without its lines.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.project.schema import Project
from tritonctl.rollout.metrics import Distances
from tritonctl.rollout.shadow.config import ShadowConfig, Side
from tritonctl.rollout.shadow.found import News
from tritonctl.server.becoming import becoming
from tritonctl.server.gateway.mirror import shadow_socket
from tritonctl.server.state import Server

CONFIG, LOG = "shadow.json", "shadow.log"
_AGAIN_SECONDS = 5.0
_END_SECONDS = 5.0


def shadow_config(
    project: Project, folder: Path, stable: Server, candidate: Server
) -> ShadowConfig:
    """Of the rollout in `folder`, with the settings of the project."""
    frontend = None
    if project.frontend is not None:
        frontend = FrontendConfig.of(
            project, [stable.grpc_url], tls=stable.client_tls, upstreams=False
        )
    return ShadowConfig(
        socket=shadow_socket(project),
        folder=folder,
        stable=Side.of(stable),
        candidate=Side.of(candidate),
        models=tuple(project.public),
        frontend=frontend,
        keep_prompts=project.rollout.keep_prompts,
    )


class Shadowing:
    """A running shadower, and what it finds. offset: how far its lines were read before.

    clock: seconds; it is started again at most every five of them.
    """

    def __init__(
        self, config: ShadowConfig, offset: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._clock = config, clock
        self._news = News(config.folder, offset)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = float("-inf")
        self._keep_running()

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._news.offset

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        alive = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and alive else None

    def news(self) -> Sequence[Distances]:
        """Of the questions since the last call. One that has ended is started again."""
        self._keep_running()
        return self._news.news()

    def close(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _keep_running(self) -> None:
        if self.pid is not None or self._clock() - self._began < _AGAIN_SECONDS:
            return
        self._began = self._clock()
        folder = self._config.folder
        try:
            self._config.write(folder / CONFIG)
            argv = [sys.executable, "-m", "tritonctl.rollout.shadow", str(folder / CONFIG)]
            with (folder / LOG).open("ab") as log, becoming(argv) as (command, needs):
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[needs]
                )
        except (OSError, HostError):
            self._process = None  # no memory, a full disk: tried again

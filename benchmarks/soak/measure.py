# SPDX-License-Identifier: Apache-2.0
"""Memory, threads and shared memory of a running Triton, from /proc and its metrics."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from tritonctl import ServerError
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.server_state import EmbeddedServer
from tritonctl.supervision.supervisor import server_processes

SERVER = "tritonserver"
_STUB = "triton_python_backend_stub"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton's Python backend puts its regions


@dataclass(frozen=True)
class Sample:
    """One sample. rss: KiB by process; threads: by process; active: streams in the engine.

    streams, cancelled: begun and left by the client so far. server: tritonserver's process id.
    """

    seconds: float
    streams: int
    cancelled: int
    rss: dict[str, int]
    threads: dict[str, int]
    files: int
    active: float
    server: int

    def head(self) -> str:
        """The table's head."""
        names = "".join(f"{name:>22}" for name in self.rss)
        return f"{'seconds':>8}{'streams':>9}{names}{'threads':>9}{'shm files':>10}{'active':>7}"

    def line(self) -> str:
        """A row, memory in MiB."""
        memory = "".join(f"{rss / 1024:>18.1f} MiB" for rss in self.rss.values())
        threads = sum(self.threads.values())
        return (
            f"{self.seconds:>8.0f}{self.streams:>9}{memory}{threads:>9}{self.files:>10}"
            f"{self.active:>7.0f}"
        )


class Sampler:
    """Samples one server."""

    def __init__(self, state: EmbeddedServer) -> None:
        self._state = state
        self._began = time.monotonic()

    async def sample(self, streams: int, cancelled: int) -> Sample:
        """A sample after this many streams; a dead server has no processes."""
        return await asyncio.to_thread(self._sample, streams, cancelled)

    def _sample(self, streams: int, cancelled: int) -> Sample:
        processes = self._processes()
        status = {name: _status(pid) for name, pid in processes.items()}
        return Sample(
            time.monotonic() - self._began,
            streams,
            cancelled,
            {name: int(fields.get("VmRSS", 0)) for name, fields in status.items()},
            {name: int(fields.get("Threads", 0)) for name, fields in status.items()},
            len(list(_SHARED_MEMORY.glob(f"{self._state.shm_prefix}*"))),
            self._active(),
            processes.get(SERVER, 0),
        )

    def _active(self) -> float:
        try:
            return scrape(self._state.metrics_url).total("tritonctl_active_streams")
        except ServerError:
            return float("nan")

    def _processes(self) -> dict[str, int]:
        """Process ids: tritonserver's, by model those of the stubs, and of their own processes."""
        pids = {}
        for pid in server_processes(self._state.shm_prefix):
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:  # it has ended
                continue
            pids[_role(Path(arguments[0]).name, arguments)] = pid
        return dict(sorted(pids.items()))


def _role(program: str, arguments: list[str]) -> str:
    if program == _STUB:  # its first argument is the model.py it runs: REPOSITORY/NAME/1/model.py
        return Path(arguments[1]).parts[-3]
    return SERVER if program == SERVER else arguments[2]  # python -m MODULE


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {key: value.split()[0] for key, value in pairs if value.split()}

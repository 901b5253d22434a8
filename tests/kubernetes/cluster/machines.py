# SPDX-License-Identifier: Apache-2.0
"""The machines of a cluster, each in namespaces of its own, with a cable between them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import making

PROGRAMS = Path(__file__).parent
FIRST, SECOND = "node1", "node2"
ADDRESS = "10.200.0.1"  # of the first one, which has the API server
# Name to its address and to the network of its pods.
PLACES = {FIRST: (ADDRESS, "10.244.0.0/24"), SECOND: ("10.200.0.2", "10.244.1.0/24")}
_NAMESPACES = ("--pid", "--fork", "--kill-child", "--net", "--mount", "--uts", "--ipc")
_SCRIPTS = {FIRST: "daemons.sh", SECOND: "worker.sh"}
# Programs that are meant to run on without this process; Python warns of one that nobody holds.
OUTLIVING: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Machine:
    """One of a cluster, whose settings, keys and logs are in `state`."""

    name: str
    state: Path

    @property
    def init(self) -> int:
        """The process that is the machine; who kills it ends the machine."""
        return int((self.state / self.name / "init").read_text(encoding="ascii"))

    def is_up(self) -> bool:
        """Whether that process is still there, and the one that it was."""
        with suppress(OSError, ValueError):
            words = Path(f"/proc/{self.init}/cmdline").read_bytes().split(b"\0")
            return f"/k/{_SCRIPTS[self.name]}".encode() in words
        return False

    def inside(self, *command: str, everything: bool = False) -> list[str]:
        """The command that runs one in the machine's network, or as one of its processes."""
        return [
            making.program("nsenter"), "--target", str(self.init),
            *(["--all"] if everything else ["--net"]), *command,
        ]  # fmt: skip

    def run(self, *command: str, everything: bool = False, content: Any = None) -> str:
        """What a command prints that runs there. Raises RuntimeError with what it says instead."""
        done = subprocess.run(
            self.inside(*command, everything=everything),
            stdin=content or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stdout

    def start(self, told: Callable[[], str]) -> None:
        """Until it is what `is_up` looks for; it goes on by itself."""
        debian = making.debian()
        own = debian / "var/lib" / ("" if self.name == FIRST else self.name)
        for name in ("kubelet", "cni"):
            shutil.rmtree(own / name, ignore_errors=True)
        (self.state / self.name).mkdir(parents=True, exist_ok=True)
        for name in ("node.sh", *_SCRIPTS.values()):
            shutil.copy(PROGRAMS / name, self.state)
        shutil.copy(debian / making.BINARIES / "pause.tar", self.state)
        address, pods = PLACES[self.name]
        more = {"NODE": self.name, "ADDRESS": address, "PODS": pods, "CGROUP": self._cgroup}
        command = [making.program("unshare"), *_NAMESPACES, "bash", str(self.state / "node.sh")]
        with (self.state / self.name / "node.log").open("wb") as log:
            holder = subprocess.Popen(
                [*command, str(debian), str(self.state), _SCRIPTS[self.name]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | more | {"NODES": " ".join(PLACES)},
            )
        OUTLIVING.append(holder)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        wait_until(lambda: bool(children.read_text(encoding="ascii").split()), 5)
        [init] = children.read_text(encoding="ascii").split()
        (self.state / self.name / "init").write_text(init, encoding="ascii")
        if self.name != FIRST:
            self._cable(Machine(FIRST, self.state))
        wait_until(self.is_up, 30, told)

    def stop(self) -> None:
        """End it and everything in it."""
        if self.is_up():
            os.kill(self.init, signal.SIGKILL)
            wait_until(lambda: not self.is_up(), 30)
        for each in Path("/sys/fs/cgroup").glob(f"*/{self._cgroup}"):
            for folder, _, _ in os.walk(each, topdown=False):
                with suppress(OSError):  # whose last process is still being taken down
                    Path(folder).rmdir()

    @property
    def _cgroup(self) -> str:
        return f"tritonctl-{self.state.name}-{self.name}"

    def _cable(self, first: Machine) -> None:
        """From the first one, with the way to this one's pods; node.sh waits for its end."""
        address, pods = PLACES[self.name]
        end = ("type", "veth", "peer", "name", "uplink", "netns", str(self.init))
        first.run("ip", "link", "add", self.name, *end)
        first.run("ip", "link", "set", self.name, "up")
        first.run("ip", "route", "add", address, "dev", self.name)
        first.run("ip", "route", "add", pods, "via", address, "dev", self.name)


def wait_until(
    condition: Callable[[], object], seconds: float, told: Callable[[], str] | None = None
) -> None:
    """Raise RuntimeError where it does not come true, with what `told` says."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:g} s: {told() if told else condition}")
        time.sleep(0.2)

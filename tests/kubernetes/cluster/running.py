# SPDX-License-Identifier: Apache-2.0
"""A cluster of one machine, in namespaces of its own, and what it is reached with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.cluster import making
from tritonctl.host.environments import ensure, environment_python
from tritonctl.host.progress import Silent
from tritonctl.server.kubernetes.manifests import HELM

PROGRAMS = Path(__file__).parent
NODE = "node1"
ADDRESS, API_PORT, DNS_PORT = "10.200.0.1", 6443, 10053
PATIENCE_SECONDS = 120.0
_NAMESPACES = ("--pid", "--fork", "--kill-child", "--net", "--mount", "--uts", "--ipc")
_DNS = f"""
apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system}}
spec: {{clusterIP: 10.96.0.10, ports: [{{port: 53, targetPort: {DNS_PORT}, protocol: UDP}}]}}
---
apiVersion: v1
kind: Endpoints
metadata: {{name: kube-dns, namespace: kube-system}}
subsets: [{{addresses: [{{ip: {ADDRESS}}}], ports: [{{port: {DNS_PORT}, protocol: UDP}}]}}]
"""


class HelmError(Exception):
    """What Helm says."""


class Cluster:
    """One that runs; `state` has its settings, keys and logs."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.kubeconfig = state / "kubeconfig"
        self.kubectl_program = shutil.which("kubectl") or str(making.debian() / "usr/bin/kubectl")

    @property
    def init(self) -> int:
        """The process that is the machine; who kills it ends the cluster."""
        return int((self.state / "init").read_text(encoding="ascii"))

    def is_up(self) -> bool:
        """Whether that process is still there, and the one that it was."""
        with suppress(OSError, ValueError):
            words = Path(f"/proc/{self.init}/cmdline").read_bytes().split(b"\0")
            return b"/k/daemons.sh" in words
        return False

    def inside(self, *command: str, everything: bool = False) -> list[str]:
        """The command that runs one in the machine's network, or as one of its processes."""
        return [
            making.program("nsenter"), "--target", str(self.init),
            *(["--all"] if everything else ["--net"]), *command,
        ]  # fmt: skip

    def start(self) -> None:
        """Until its node is ready. Raises RuntimeError with the end of the log that tells."""
        shutil.rmtree(self.state, ignore_errors=True)
        self.state.mkdir(parents=True)
        debian = making.debian()
        for name in ("var/lib/kubelet", "var/lib/cni"):
            shutil.rmtree(debian / name, ignore_errors=True)
        for name in ("node.sh", "daemons.sh"):
            shutil.copy(PROGRAMS / name, self.state)
        shutil.copy(debian / making.BINARIES / "pause.tar", self.state)
        command = [making.program("unshare"), *_NAMESPACES, "bash", str(self.state / "node.sh")]
        with (self.state / "node.log").open("wb") as log:
            holder = subprocess.Popen(
                [*command, str(debian), str(self.state)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"CGROUP": self._cgroup},
            )
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        wait_until(lambda: bool(children.read_text(encoding="ascii").split()), 5)
        [init] = children.read_text(encoding="ascii").split()
        (self.state / "init").write_text(init, encoding="ascii")
        wait_until(self.is_up, 30, self.told)
        wait_until((self.state / "pki/node.conf").is_file, 30, self.told)
        self._connect()
        wait_until(self._ready, PATIENCE_SECONDS, self.told)
        self._serve_names()

    def stop(self) -> None:
        """End it and everything in it."""
        for name in ("api.pid", "dns.pid"):
            with suppress(OSError, ValueError):
                os.kill(int((self.state / name).read_text(encoding="ascii")), signal.SIGKILL)
        if self.is_up():
            os.kill(self.init, signal.SIGKILL)
            wait_until(lambda: not self.is_up(), 30)
        for each in Path("/sys/fs/cgroup").glob(f"*/{self._cgroup}"):
            for folder, _, _ in os.walk(each, topdown=False):
                with suppress(OSError):  # whose last process is still being taken down
                    Path(folder).rmdir()

    def told(self) -> str:
        """The end of every log."""
        logs = [self.state / "node.log", *sorted((self.state / "log").glob("*.log"))]
        tails = (log.read_text(encoding="utf-8", errors="replace")[-1500:] for log in logs)
        return "\n".join(f"--- {log.name}\n{tail}" for log, tail in zip(logs, tails, strict=True))

    def kubectl(self, *arguments: str, given: str | None = None, seconds: float = 120) -> str:
        """What it prints. Raises CalledProcessError with what it says instead."""
        command = [self.kubectl_program, f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, timeout=seconds
        )
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, command, done.stdout)
            error.add_note(done.stderr)
            raise error
        return done.stdout

    def read(self, *arguments: str) -> Any:
        """`kubectl get ARGUMENTS` as a record."""
        return json.loads(self.kubectl("get", "-o", "json", *arguments))

    def helm(self, namespace: str, action: str, **arguments: Any) -> Any:
        """One action of Helm's. Raises HelmError."""
        asked = {"kubeconfig": str(self.kubeconfig), "namespace": namespace, "action": action}
        done = subprocess.run(
            [environment_python(ensure(HELM, Silent())), PROGRAMS / "helm.py"],
            input=json.dumps(asked | {"arguments": arguments}),
            capture_output=True,
            text=True,
            check=True,
        )
        answer = json.loads(done.stdout)
        if problem := answer.get("problem"):
            raise HelmError(problem)
        return answer["result"]

    def import_images(self, archive: Path) -> None:
        """Of `docker save`, under the names that they have there."""
        with archive.open("rb") as content:
            command = self.inside("ctr", "--namespace=k8s.io", "images", "import", "-")
            self._as_machine(command, content)

    def images(self) -> set[str]:
        """The names of those that it has."""
        command = self.inside("ctr", "--namespace=k8s.io", "images", "list", "--quiet")
        return set(self._as_machine(command).split())

    def kill(self, container: str, how: str = "SIGKILL") -> None:
        """A signal for the first process of a container, as its status names it."""
        name = container.removeprefix("containerd://")
        command = self.inside("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal", how, name)
        self._as_machine(command)

    @contextmanager
    def reaching(self, address: str, port: int) -> Iterator[str]:
        """The address on loopback of one in the cluster: of a Service or a pod."""
        process, local = self._forward(address, port)
        try:
            yield f"127.0.0.1:{local}"
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def running(self, *command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A program of this machine in the cluster's network."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.inside(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def token(self) -> str:
        """Of who may everything."""
        config = yaml.safe_load((self.state / "pki/admin.conf").read_text(encoding="utf-8"))
        token: str = config["users"][0]["user"]["token"]
        return token

    @property
    def _cgroup(self) -> str:
        return f"tritonctl-{self.state.name}"

    def _as_machine(self, command: list[str], content: Any = subprocess.DEVNULL) -> str:
        command[3:4] = ["--all"]
        done = subprocess.run(command, stdin=content, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stdout

    def _forward(self, address: str, port: int, log: Any = None) -> tuple[Any, int]:
        """A listening socket stays where it was made; what it leads to is asked from inside."""
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            command = self.inside(
                sys.executable, str(PROGRAMS / "forward.py"),
                str(listening.fileno()), address, str(port),
            )  # fmt: skip
            process = subprocess.Popen(
                command,
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log or subprocess.DEVNULL,
                stderr=log or subprocess.DEVNULL,
                start_new_session=True,
            )
            return process, listening.getsockname()[1]

    def _connect(self) -> None:
        """A kubeconfig for who is outside."""
        process, port = self._forward(ADDRESS, API_PORT)
        (self.state / "api.pid").write_text(str(process.pid), encoding="ascii")
        config = yaml.safe_load((self.state / "pki/admin.conf").read_text(encoding="utf-8"))
        config["clusters"][0]["cluster"] = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority": str(self.state / "pki/ca.crt"),
        }
        self.kubeconfig.touch(0o600)
        self.kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")

    def _ready(self) -> bool:
        with suppress(subprocess.SubprocessError):
            return " Ready " in self.kubectl("get", "nodes", "--no-headers", seconds=10)
        return False

    def _serve_names(self) -> None:
        token = self.state / "token"
        token.touch(0o600)
        token.write_text(self.token, encoding="ascii")
        program = [sys.executable, str(PROGRAMS / "dns.py"), f"https://{ADDRESS}:{API_PORT}"]
        with (self.state / "log/dns.log").open("wb") as log:
            process = subprocess.Popen(
                self.inside(*program, str(token), ADDRESS, str(DNS_PORT)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.state / "dns.pid").write_text(str(process.pid), encoding="ascii")
        self.kubectl("apply", "--filename=-", given=_DNS)


def wait_until(
    condition: Callable[[], object], seconds: float, told: Callable[[], str] | None = None
) -> None:
    """Raise RuntimeError where it does not come true, with what `told` says."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:g} s: {told() if told else condition}")
        time.sleep(0.2)

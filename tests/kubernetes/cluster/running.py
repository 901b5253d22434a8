# SPDX-License-Identifier: Apache-2.0
"""A cluster of two machines, in namespaces of their own, and what it is reached with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.cluster import making
from tests.kubernetes.cluster.machines import (
    ADDRESS,
    OUTLIVING,
    PLACES,
    PROGRAMS,
    SECOND,
    Machine,
    wait_until,
)
from tritonctl.host.environments import ensure_environment, environment_python
from tritonctl.host.progress import Silent
from tritonctl.runtimes.kubernetes.manifests import helm_recipe

API_PORT, DNS_PORT = 6443, 10053
PATIENCE_SECONDS = 240.0
_GROUPS = {"deployments": "apis/apps/v1", "pods": "api/v1", "services": "api/v1"}
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
        self.machines = [Machine(name, state) for name in PLACES]
        self._first = self.machines[0]

    def is_up(self) -> bool:
        """Whether its machines are."""
        return all(machine.is_up() for machine in self.machines)

    def start(self) -> None:
        """Its machines; who wants to use it waits `until_ready`."""
        self.stop()  # what was left of one
        shutil.rmtree(self.state, ignore_errors=True)
        for machine in self.machines:  # the first one makes the keys of all
            machine.start(self.told)
            wait_until((self.state / f"pki/{SECOND}.conf").is_file, 30, self.told)

    def until_ready(self) -> None:
        """Nodes and names. Raises RuntimeError with the ends of the logs that tell."""
        if not self.kubeconfig.is_file():
            self._connect()
        wait_until(self._ready, PATIENCE_SECONDS, self.told)
        if not (self.state / "dns.pid").is_file():
            self._serve_names()

    def stop(self) -> None:
        """End it and everything in it."""
        for name in ("api.pid", "dns.pid"):
            with suppress(OSError, ValueError):
                os.kill(int((self.state / name).read_text(encoding="ascii")), signal.SIGKILL)
        for machine in self.machines:
            machine.stop()

    def told(self) -> str:
        """The end of every log."""
        logs = [*self.state.glob("*/node.log"), *sorted((self.state / "log").glob("*.log"))]
        tails = (log.read_text(encoding="utf-8", errors="replace")[-1500:] for log in logs)
        return "\n".join(f"--- {log.name}\n{tail}" for log, tail in zip(logs, tails, strict=True))

    def kubectl(self, *arguments: str, given: str | None = None, seconds: float = 120) -> str:
        """What it prints. Raises CalledProcessError with what it says instead."""
        done = self.asked(*arguments, given=given, seconds=seconds)
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout)
            error.add_note(done.stderr)
            raise error
        return done.stdout

    def asked(
        self, *arguments: str, given: str | None = None, seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """`kubectl ARGUMENTS`."""
        command = [self.kubectl_program, f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, timeout=seconds
        )

    def environment(self) -> dict[str, str]:
        """The variables by which a user's commands find kubectl and the cluster."""
        folder = self.state / "bin"
        folder.mkdir(exist_ok=True)
        if not (folder / "kubectl").is_symlink():
            (folder / "kubectl").symlink_to(self.kubectl_program)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "KUBECONFIG": str(self.kubeconfig)}

    def read(self, namespace: str, kind: str, name: str = "", **query: str) -> Any:
        """Objects of a kind, or one, as the API has them: kubectl needs a tenth of a second."""
        place = f"{_GROUPS[kind]}/namespaces/{namespace}/{kind}{name and f'/{name}'}"
        request = urllib.request.Request(  # noqa: S310 - ours
            f"{self._server}/{place}?{urllib.parse.urlencode(query)}",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=30, context=self._tls) as answer:  # noqa: S310
            return json.load(answer)

    def helm(self, namespace: str, action: str, **arguments: Any) -> Any:
        """One action of Helm's. Raises HelmError."""
        asked = {"kubeconfig": str(self.kubeconfig), "namespace": namespace, "action": action}
        done = subprocess.run(
            [environment_python(ensure_environment(helm_recipe(), Silent())), PROGRAMS / "helm.py"],
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
        """Of `docker save`, under the names that they have there, on every machine."""

        def bring(machine: Machine) -> None:
            with archive.open("rb") as content:
                machine.run(*_images("import", "-"), everything=True, content=content)

        with ThreadPoolExecutor() as pool:
            list(pool.map(bring, self.machines))

    def images(self) -> set[str]:
        """The names of those that every machine has."""
        found = (
            machine.run(*_images("list", "--quiet"), everything=True) for machine in self.machines
        )
        return set.intersection(*(set(names.split()) for names in found))

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
                self._first.inside(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @cached_property
    def token(self) -> str:
        """Of who may everything."""
        config = yaml.safe_load((self.state / "pki/admin.conf").read_text(encoding="utf-8"))
        token: str = config["users"][0]["user"]["token"]
        return token

    @cached_property
    def _server(self) -> str:
        config = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        server: str = config["clusters"][0]["cluster"]["server"]
        return server

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.state / "pki/ca.crt")

    def _forward(self, address: str, port: int, log: Any = None) -> tuple[Any, int]:
        """A listening socket stays where it was made; what it leads to is asked from inside."""
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            command = self._first.inside(
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
        OUTLIVING.append(process)
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
            nodes = self.kubectl("get", "nodes", "--no-headers", seconds=10)
            return nodes.count(" Ready") == len(self.machines)  # also where one is cordoned
        return False

    def _serve_names(self) -> None:
        token = self.state / "token"
        token.touch(0o600)
        token.write_text(self.token, encoding="ascii")
        program = [sys.executable, str(PROGRAMS / "dns.py"), f"https://{ADDRESS}:{API_PORT}"]
        with (self.state / "log/dns.log").open("wb") as log:
            process = subprocess.Popen(
                self._first.inside(*program, str(token), ADDRESS, str(DNS_PORT)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        OUTLIVING.append(process)
        (self.state / "dns.pid").write_text(str(process.pid), encoding="ascii")
        self.kubectl("apply", "--filename=-", given=_DNS)


def _images(*arguments: str) -> list[str]:
    return ["ctr", "--namespace=k8s.io", "images", *arguments]

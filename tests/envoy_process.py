# SPDX-License-Identifier: Apache-2.0
"""A real Envoy, out of a package that carries it, in front of servers on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tritonctl.gateway.certificates import certificate_files
from tritonctl.gateway.files import configuration_text
from tritonctl.gateway.placement import (
    EnvoyUpstream,
    GatewayPlacement,
    RenewedCertificates,
    SlotGroups,
    gateway_of,
    secret_files,
)
from tritonctl.host.environments import ensure_environment, site_packages
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.runtimes.embedded.gateway import envoy_recipe
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.runtimes.server_state import Server

PATIENCE_SECONDS = 60.0
_MODEL = {"checkpoint": "unused", "engine": {"builder": "unused", "precision": "fp32"}}


def on_this_host(
    project: Project, upstreams: Sequence[EnvoyUpstream], frontend: tuple[str, int] | None = None
) -> GatewayPlacement:
    """A process beside the servers; the metrics always on loopback."""
    gateway = gateway_of(project)
    return GatewayPlacement(
        upstreams=tuple(upstreams),
        address=gateway.address,
        port=gateway.port,
        admin_address="127.0.0.1",
        admin_port=gateway.admin_port,
        secrets={name: str(path) for name, path in secret_files(project).items()},
        frontend=frontend,
    )


@cache
def binary() -> Path:
    """The program itself."""
    return site_packages(ensure_environment(envoy_recipe(), Silent())) / "envoy" / "_bin" / "envoy"


def project_with(gateway: Mapping[str, Any], root: Path, server: Any = None) -> Project:
    """A project of which only the gateway, and the server's TLS, matter."""
    data = {"schema": "tritonctl/v1", "models": {"m": _MODEL}, "gateway": dict(gateway)}
    return Project.at(root, data | ({"server": server} if server else {}))


def upstream_of(state: Server) -> EnvoyUpstream:
    """A running embedded server."""
    return EnvoyUpstream(state.address, state.grpc_port, state.http_port)


def validate(file: Path) -> subprocess.CompletedProcess[str]:
    """`envoy --mode validate`: what Envoy itself says of a configuration."""
    command: list[str | Path] = [
        binary(),
        "--mode",
        "validate",
        "--disable-hot-restart",
        "-c",
        file,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Envoy:
    """One process and its ports; start, stop and start it again as you like."""

    def __init__(
        self,
        root: Path,
        upstreams: Sequence[EnvoyUpstream],
        gateway: Mapping[str, Any] | None = None,
        *,
        server: Any = None,
        concurrency: int = 1,
        launcher: Sequence[str | Path] = (),
        frontend: tuple[str, int] | None = None,
        cors: bool = False,
        slots: SlotGroups | None = None,
        renewed: RenewedCertificates | None = None,
    ) -> None:
        self._held = ExitStack()  # the ports, for as long as it may be started again
        wanted = reserved_ports("127.0.0.1", {"port": 0, "admin_port": 0})
        self.port, self.admin_port = self._held.enter_context(wanted)
        ports = {"port": self.port, "admin_port": self.admin_port}
        project = project_with({**(gateway or {}), **ports}, root, server)
        self.log, self.file = root / "envoy.log", root / "envoy.yaml"
        here = on_this_host(project, upstreams, frontend)
        self.placement = replace(here, slots=slots, renewed=renewed, cors=cors)
        if renewed is not None:
            Path(renewed.folder).mkdir(exist_ok=True)
            for name, text in certificate_files(self.placement).items():
                (Path(renewed.folder) / name).write_text(text)
        self.gateway = gateway_of(project)
        self.file.write_text(configuration_text(project, self.placement))
        self._options = ["--concurrency", str(concurrency)]
        self._launcher = launcher
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """`host:port` of gRPC and REST."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Envoy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it for good: its ports are anybody's."""
        self.stop()
        self._held.close()

    def start(self) -> None:
        """Until it is ready, which means that each upstream was looked at once."""
        command: list[str | Path] = [*self._launcher, binary(), "-c", self.file]
        command += ["--disable-hot-restart", "--log-level", "warning", *self._options]
        with self.log.open("ab") as log:
            # Its sockets lie in its working directory, as those of the supervised one.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self.file.parent
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            said = self.log.read_text(encoding="utf-8")[-3000:]
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it; Envoy cuts what is under way."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(PATIENCE_SECONDS)
            self.process = None

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /stats/prometheus, 0 when there is none; added up over other labels."""
        total = 0.0
        for line in self.admin("/stats/prometheus").splitlines():
            if line.split("{")[0].split(" ")[0] == name and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def admin(self, path: str) -> str:
        """A page of the listener for health and metrics."""
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def accesses(self) -> list[dict[str, Any]]:
        """The access log so far; Envoy writes it out every second."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def _answers(self) -> bool:
        try:
            return self.admin("/ready") == "LIVE\n"
        except OSError:
            return False

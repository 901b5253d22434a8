# SPDX-License-Identifier: Apache-2.0
"""A tritonserver by itself: any model repository, no project, open to whoever reaches its port."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.host.progress import Silent
from tritonctl.repository.backends import backend_named
from tritonctl.server.embedded.installation import install
from tritonctl.server.ports import choose_ports

PATIENCE = 60.0


@dataclass
class PlainTriton:
    """One that runs. `url`: of gRPC."""

    url: str
    metrics_url: str
    stub: Any

    def load(self, model: str) -> None:
        """Have it loaded from the repository."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        self.stub.RepositoryModelLoad(request, timeout=PATIENCE)

    def unload(self, model: str) -> None:
        """Have it unloaded; it may take a moment."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        self.stub.RepositoryModelUnload(request, timeout=PATIENCE)


@contextmanager
def plain_triton(repository: Path, log: Path, *arguments: str) -> Iterator[PlainTriton]:
    """Serve a repository, models that do not load left out; explicit control unless told."""
    installation = install([backend_named("tokenizer")], Silent())
    ports = choose_ports("127.0.0.1", {"grpc": 0, "http": 0, "metrics": 0})
    places = zip(("grpc", "http", "metrics"), ports, strict=True)
    command = [
        str(installation.binary),
        f"--model-repository={repository}",
        f"--backend-directory={installation.backends}",
        "--exit-on-error=false",
        *(f"--{name}-port={port}" for name, port in places),
        *(f"--{name}-address=127.0.0.1" for name in ("grpc", "http", "metrics")),
        *(arguments or ("--model-control-mode=explicit", "--load-model=*")),
    ]
    with log.open("a") as file:
        server = subprocess.Popen(
            command, env=installation.environment, stdout=file, stderr=file, process_group=0
        )
    try:
        url = f"127.0.0.1:{ports[0]}"
        with grpc.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            live = service_pb2.ServerLiveRequest()
            assert stub.ServerLive(live, wait_for_ready=True, timeout=PATIENCE).live
            yield PlainTriton(url, f"http://127.0.0.1:{ports[2]}/metrics", stub)
    finally:
        with suppress(ProcessLookupError):  # with its stubs, which a killed server leaves
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()

# SPDX-License-Identifier: Apache-2.0
"""A tritonserver by itself: any model repository, no project, open to whoever reaches its port."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.host.progress import Silent
from tritonctl.repository.backends import backend_named
from tritonctl.runtimes.embedded.installation import install_server
from tritonctl.runtimes.ports import reserved_ports

PATIENCE = 60.0


class PlainTriton:
    """Serves a repository, models that do not load left out; explicit control unless told.

    `ready` starts it, and anew where it has died or a test is tried again.
    """

    def __init__(self, repository: Path, log: Path, *arguments: str) -> None:
        self._repository, self._log = repository, log
        self._arguments = arguments or ("--model-control-mode=explicit", "--load-model=*")
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None
        self.url = self.metrics_url = ""  # `url`: of gRPC
        self.stub: Any = None

    def ready(self, item: pytest.Item) -> PlainTriton:
        """For one test: a server that has just answered."""
        if getattr(item, "execution_count", 1) > 1 or not self._lives():
            self.stop()
            self._start()
        return self

    def load(self, model: str) -> None:
        """Have it loaded from the repository."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        self.stub.RepositoryModelLoad(request, timeout=PATIENCE)

    def unload(self, model: str) -> None:
        """Have it unloaded; it may take a moment."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        self.stub.RepositoryModelUnload(request, timeout=PATIENCE)

    def stop(self) -> None:
        """With its stubs, which a killed server leaves."""
        if self._channel:
            self._channel.close()
        if self._server:
            with suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()

    def _lives(self) -> bool:
        if self._server is None or self._server.poll() is not None:
            return False
        with suppress(grpc.RpcError):
            live = service_pb2.ServerLiveRequest()
            return bool(self.stub.ServerLive(live, timeout=PATIENCE).live)
        return False

    def _start(self) -> None:
        with reserved_ports("127.0.0.1", {"grpc": 0, "http": 0, "metrics": 0}) as ports:
            self._launch(ports)

    def _launch(self, ports: Sequence[int]) -> None:
        installation = install_server([backend_named("tokenizer")], Silent())
        places = zip(("grpc", "http", "metrics"), ports, strict=True)
        command = [
            str(installation.binary),
            f"--model-repository={self._repository}",
            f"--backend-directory={installation.backends}",
            "--exit-on-error=false",
            *(f"--{name}-port={port}" for name, port in places),
            *(f"--{name}-address=127.0.0.1" for name in ("grpc", "http", "metrics")),
            *self._arguments,
        ]
        with self._log.open("a") as file:
            self._server = subprocess.Popen(
                command, env=installation.environment, stdout=file, stderr=file, process_group=0
            )
        self.url, self.metrics_url = f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[2]}/metrics"
        self._channel = grpc.insecure_channel(self.url)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        live = service_pb2.ServerLiveRequest()
        assert self.stub.ServerLive(live, wait_for_ready=True, timeout=PATIENCE).live

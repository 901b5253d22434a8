# SPDX-License-Identifier: Apache-2.0
"""A real tritonserver that says whether it loads a model repository."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.unit.checks.repositories import put
from tritonctl.checks.examples.files import Example
from tritonctl.host.progress import Silent
from tritonctl.repository.backends import backend_named
from tritonctl.server.embedded.installation import install
from tritonctl.server.ports import held_ports

PATIENCE = 20.0
AT_ONCE = 4
_BETWEEN_BARRIERS = 32


@dataclass(frozen=True)
class Candidate:
    """Files of a repository whose models share their names with no other's, and the one to load."""

    model: str
    files: Example

    @property
    def models(self) -> list[str]:
        """The one to load first: nothing else uses it."""
        return [self.model, *sorted({name.split("/")[0] for name in self.files} - {self.model})]


class Judge:
    """A tritonserver that loads what is put before it; another one when it hangs over it.

    kept: models that are there throughout, for ensembles to use.
    """

    def __init__(self, folder: Path, kept: Example | None = None) -> None:
        self._folder = folder
        self._repository = folder / "models"
        self._kept = kept or {}
        self._installation = install([backend_named("tokenizer")], Silent())
        self._start()

    def _start(self) -> None:
        shutil.rmtree(self._repository, ignore_errors=True)
        self._repository.mkdir(parents=True)
        put(self._repository, self._kept)
        with held_ports("127.0.0.1", {"grpc": 0, "http": 0, "metrics": 0}) as ports:
            self._launch(ports)
        for name in sorted({name.split("/")[0] for name in self._kept}):
            assert self._load(name) == ""

    def _launch(self, ports: Sequence[int]) -> None:
        """A server that is live on these ports."""
        places = zip(("grpc", "http", "metrics"), ports, strict=True)
        command = [
            str(self._installation.binary),
            f"--model-repository={self._repository}",
            "--model-control-mode=explicit",
            f"--backend-directory={self._installation.backends}",
            *(f"--{name}-address=127.0.0.1" for name in ("grpc", "http", "metrics")),
            *(f"--{name}-port={port}" for name, port in places),
        ]
        with (self._folder / "log").open("a") as log:
            environment = self._installation.environment
            self._server = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, process_group=0
            )
        channel = grpc.insecure_channel(f"127.0.0.1:{ports[0]}")
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        live = service_pb2.ServerLiveRequest()
        assert self._stub.ServerLive(live, wait_for_ready=True, timeout=PATIENCE).live

    def stop(self) -> None:
        """With its stubs, which a killed server leaves."""
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def refuses(self, files: Example) -> str:
        """Why it does not load the model `m` of these files; "" when it does.

        An ensemble is loaded with its steps.
        """
        shutil.rmtree(self._repository)
        put(self._repository, files)
        refusal = self._load("m")
        if refusal is None:
            return self._begin_again()
        self.clear()
        return refusal

    def refusals(self, candidates: Sequence[Candidate]) -> Iterator[str]:
        """The same for each of many, several at a time."""
        for start in range(0, len(candidates), _BETWEEN_BARRIERS):
            some = candidates[start : start + _BETWEEN_BARRIERS]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found = list(pool.map(self._refusal, some))
            if None in found:  # which of them it was shows when each is alone
                self._begin_again()
            for candidate, refusal in zip(some, found, strict=True):
                again = self._refusal(candidate) if refusal is None else refusal
                yield self._begin_again() if again is None else again

    def _begin_again(self) -> str:
        """Some mistakes hang the server, and some end it."""
        self.stop()
        self._start()
        return "the server hangs or ends"

    def _refusal(self, candidate: Candidate) -> str | None:
        put(self._repository, candidate.files)
        try:
            refusal = self._load(candidate.model)
            for name in candidate.models if refusal is not None else ():
                self._unload(name)
        finally:
            for name in candidate.models:
                shutil.rmtree(self._repository / name, ignore_errors=True)
        return refusal

    def _load(self, model: str) -> str | None:
        """None when there is no answer."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        try:
            self._stub.RepositoryModelLoad(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            hangs = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            if hangs or (error.code() == grpc.StatusCode.UNAVAILABLE and not self._lives()):
                return None
            return self._reason(model) or str(error.details() or error.code())
        return ""

    def _reason(self, model: str) -> str | None:
        """What only the log says of a configuration that cannot be read."""
        log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
        found = re.findall(rf"Poll failed for model directory '{re.escape(model)}': (.*)", log)
        return found[-1] if found else None

    def _lives(self) -> bool:
        try:
            return bool(self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=2).live)
        except grpc.RpcError:
            return False

    def _unload(self, model: str) -> None:
        unload = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        with suppress(grpc.RpcError):  # what was never loaded
            self._stub.RepositoryModelUnload(unload, timeout=PATIENCE)

    def clear(self) -> None:
        """Unload all that is loaded: the steps of an ensemble stay when it is refused."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            index = self._stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
            for model in index.models:
                if model.state == "READY":
                    self._unload(model.name)
            if all(model.state in ("UNAVAILABLE", "") for model in index.models):
                return
            time.sleep(0.05)

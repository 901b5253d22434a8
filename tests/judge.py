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
from typing import TypeVar

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.unit.checks.repositories import put
from tritonctl.checks.examples.files import Example
from tritonctl.host.progress import Silent
from tritonctl.repository.backends import backend_named
from tritonctl.runtimes.embedded.installation import install_server

PATIENCE = 60.0
AT_ONCE = 4
_BETWEEN_BARRIERS = 32
_LISTENING = "0A"  # of /proc/net/tcp
# The one endpoint that is used, on whichever port is free.
ONE_ENDPOINT = (
    *("--grpc-address=127.0.0.1", "--grpc-port=0"),
    *("--allow-http=false", "--allow-metrics=false"),
)


@dataclass(frozen=True)
class Candidate:
    """Files of a repository whose models share their names with no other's, and the one to load."""

    model: str
    files: Example

    @classmethod
    def of(cls, files: Example, name: str) -> Candidate:
        """An example, its model `m` and those that it uses renamed, wherever they are quoted."""
        models = {path.split("/")[0] for path in files if not path.startswith(".")}
        quoted = re.compile('"(' + "|".join(map(re.escape, sorted(models))) + ')"')
        renamed = {
            f"{name}_{path}" if path.split("/")[0] in models else path: (
                quoted.sub(rf'"{name}_\1"', file) if isinstance(file, str) else file
            )
            for path, file in files.items()
        }
        return cls(f"{name}_m", renamed)

    @property
    def models(self) -> list[str]:
        """The one to load first: nothing else uses it."""
        return [self.model, *sorted({name.split("/")[0] for name in self.files} - {self.model})]


class Judge:
    """A tritonserver that loads what is put before it; another one when it hangs over it.

    kept: models that are there throughout, for ensembles to use. options: of the server.
    """

    def __init__(
        self, folder: Path, kept: Example | None = None, options: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._repository = folder / "models"
        self._kept = kept or {}
        self._options = options
        self._installation = install_server([backend_named("tokenizer")], Silent())
        self._start()

    def _start(self) -> None:
        shutil.rmtree(self._repository, ignore_errors=True)
        self._repository.mkdir(parents=True)
        put(self._repository, self._kept)
        command = [
            str(self._installation.binary),
            f"--model-repository={self._repository}",
            "--model-control-mode=explicit",
            f"--backend-directory={self._installation.backends}",
            *ONE_ENDPOINT,
            *self._options,
        ]
        with (self._folder / "log").open("a") as log:
            environment = self._installation.environment
            self._server = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, process_group=0
            )
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self._port()}")
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        live = service_pb2.ServerLiveRequest()
        assert self._stub.ServerLive(live, wait_for_ready=True, timeout=PATIENCE).live
        kept = sorted({name.split("/")[0] for name in self._kept})
        with ThreadPoolExecutor(AT_ONCE) as pool:
            assert list(pool.map(self._load, kept)) == [""] * len(kept)

    def _port(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self._server.poll() is None, (self._folder / "log").read_text(errors="replace")
            if port := listening_port(self._server.pid):
                return port
            time.sleep(0.02)
        raise AssertionError("tritonserver does not listen")

    def stop(self) -> None:
        """With its stubs, which a killed server leaves."""
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        self._channel.close()

    def restart(self) -> None:
        """Another server, for one that has ended or holds what never ends."""
        self.stop()
        self._start()

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
        self.restart()
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
            if hangs or (error.code() == grpc.StatusCode.UNAVAILABLE and not self.lives()):
                return None
            return self._reason(model) or str(error.details() or error.code())
        return ""

    def _reason(self, model: str) -> str | None:
        """What only the log says of a configuration that cannot be read."""
        log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
        found = re.findall(rf"Poll failed for model directory '{re.escape(model)}': (.*)", log)
        return found[-1] if found else None

    def lives(self) -> bool:
        """Whether it answers."""
        try:
            live = service_pb2.ServerLiveRequest()
            return bool(self._stub.ServerLive(live, timeout=PATIENCE).live)
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
        self._begin_again()


AnyJudge = TypeVar("AnyJudge", bound=Judge)


def proven(judge: AnyJudge, request: pytest.FixtureRequest) -> AnyJudge:
    """A judge of several tests, for one of them: it answers, and a second attempt gets its own."""
    if getattr(request.node, "execution_count", 1) > 1 or not judge.lives():
        judge.restart()
    return judge


def listening_port(pid: int) -> int | None:
    """The TCP port on which a process listens; None as long as there is none."""
    inodes = set()
    with suppress(OSError):  # it ends meanwhile
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it is closed meanwhile
                inodes.add(str(file.readlink()).removeprefix("socket:[").rstrip("]"))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):  # a machine without IPv6
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                columns = line.split()
                if columns[3] == _LISTENING and columns[9] in inodes:
                    return int(columns[1].rpartition(":")[2], 16)
    return None

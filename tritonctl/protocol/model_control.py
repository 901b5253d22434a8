# SPDX-License-Identifier: Apache-2.0
"""Triton's model control over gRPC: a complete configuration becomes live, and is read back.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import ServerError, SettingsRefusedError
from tritonctl.protocol.channel import Endpoint

_LOAD_SECONDS = 180.0
_ASK_SECONDS = 5.0
_POLL_SECONDS = 0.01
_READY_SECONDS = 30.0
# A model's state in the index: unloaded, or never loaded; one that goes is UNLOADING.
_GONE = ("UNAVAILABLE", "")

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Swap:
    """What makes a change of configurations live: models to unload, then to load, in order."""

    unload: tuple[str, ...] = ()
    load: tuple[str, ...] = ()


class ModelControl:
    """The models of one server; close it when done."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url
        self._metadata = endpoint.admin_metadata
        self._channel = endpoint.channel()
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def live(self) -> bool:
        """Whether the server answers at all."""
        try:
            answer = self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_ASK_SECONDS)
        except grpc.RpcError:
            return False
        return bool(answer.live)

    def config(self, model: str) -> dict[str, Any]:
        """A model's live configuration. Raises ServerError."""
        request = service_pb2.ModelConfigRequest(name=model)
        try:
            answer = self._stub.ModelConfig(request, timeout=_ASK_SECONDS)
        except grpc.RpcError as error:
            raise _unreachable(error, self._url) from error
        found: dict[str, Any] = MessageToDict(answer.config, preserving_proto_field_name=True)
        return found

    def ready(self, model: str) -> bool:
        """Whether a model can answer."""
        request = service_pb2.ModelReadyRequest(name=model)
        try:
            return bool(self._stub.ModelReady(request, timeout=_ASK_SECONDS).ready)
        except grpc.RpcError:
            return False

    def load(self, model: str, config: Config | None = None) -> None:
        """Load a model with this configuration, all of it: what it leaves out is Triton's default.

        Without one, with that of its repository. An ensemble loads its steps again that were loaded
        with another configuration than their repository's. Raises SettingsRefusedError, or
        ServerError when the server does not answer.
        """
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = json.dumps(config)
        try:
            self._stub.RepositoryModelLoad(request, timeout=_LOAD_SECONDS, metadata=self._metadata)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise _unreachable(error, self._url) from error
            raise SettingsRefusedError(
                f"Triton does not load {model} with these settings: {error.details()}",
                remedy="see `tritonctl logs`; the tuner goes on without them",
            ) from error

    def unload(self, model: str, seconds: float = _LOAD_SECONDS) -> bool:
        """Unload a model, and wait until it has gone: whether it has. Raises ServerError.

        tritonserver 2.51 never forgets an ensemble's request that was cancelled or failed, nor lets
        go of the models that it began with: those stay UNLOADING until the server ends.
        """
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        try:
            if not self._unloaded(model):
                self._stub.RepositoryModelUnload(
                    request, timeout=_LOAD_SECONDS, metadata=self._metadata
                )
            deadline = time.monotonic() + seconds
            while not self._unloaded(model):
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL_SECONDS)
        except grpc.RpcError as error:
            raise _unreachable(error, self._url) from error
        return True

    def _unloaded(self, model: str) -> bool:
        index = self._stub.RepositoryIndex(
            service_pb2.RepositoryIndexRequest(), timeout=_ASK_SECONDS, metadata=self._metadata
        )
        states = [found.state for found in index.models if found.name == model]
        return all(state in _GONE for state in states)

    def wait_until_ready(self, models: Sequence[str]) -> None:
        """Wait until all of them can answer. Raises SettingsRefusedError."""
        deadline = time.monotonic() + _READY_SECONDS
        while missing := [model for model in models if not self.ready(model)]:
            if time.monotonic() > deadline:
                raise SettingsRefusedError(
                    f"{', '.join(missing)} is not ready after a step was loaded with new settings",
                    remedy="see `tritonctl logs`",
                )
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def timing_gaps(self, model: str) -> Iterator[list[float]]:
        """Collects how long the model could not answer, in seconds, while the context lasts."""
        gaps: list[float] = []
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(model, gaps, done), daemon=True)
        watcher.start()
        try:
            yield gaps
        finally:
            done.set()
            watcher.join()

    def _watch(self, model: str, gaps: list[float], done: threading.Event) -> None:
        began: float | None = None
        while not done.wait(_POLL_SECONDS):
            ready, now = self.ready(model), time.monotonic()
            if not ready and began is None:
                began = now
            elif ready and began is not None:
                gaps.append(now - began)
                began = None
        if began is not None:
            gaps.append(time.monotonic() - began)


def swap(before: Mapping[str, Config], after: Mapping[str, Config]) -> Swap:
    """The models whose configuration changes, in an order that keeps ensembles loaded if it can be.

    Composing models first, then ensembles, which are looked at again with every step; but an
    ensemble whose max_batch_size falls goes first: above that of a step it would be unloaded.

    A decoupled step cannot be swapped under its ensemble: tritonserver 2.51 then answers one
    request and hangs in the step's next response. So they are unloaded, the ensemble first.
    """
    changed = [name for name in after if before.get(name) != after[name]]
    decoupled = sorted(n for n in changed if _decoupled(before.get(n, {}), after[n]))
    around = sorted(name for name in after if _uses(after[name], decoupled))

    def place(name: str) -> tuple[int, str]:
        if "ensemble_scheduling" not in after[name]:
            return 1, name
        falls = _max_batch_size(after[name]) < _max_batch_size(before.get(name, {}))
        return (0 if falls and name not in around else 2), name

    order = sorted({*changed, *around}, key=place)
    return Swap((*around, *decoupled), tuple(order))


def _decoupled(*configs: Config) -> bool:
    return any(c.get("model_transaction_policy", {}).get("decoupled") for c in configs)


def _steps(config: Config) -> list[str]:
    return [s["model_name"] for s in config.get("ensemble_scheduling", {}).get("step", [])]


def _uses(config: Config, models: Sequence[str]) -> bool:
    return not set(models).isdisjoint(_steps(config))


def takes(live: Any, planned: Any) -> bool:
    """Whether a live configuration says everything that was planned; Triton adds to it."""
    if isinstance(planned, Mapping):
        return isinstance(live, Mapping) and all(
            takes(live.get(key), value) for key, value in planned.items()
        )
    if isinstance(planned, list):
        return (
            isinstance(live, list)
            and len(live) == len(planned)
            and all(takes(one, other) for one, other in zip(live, planned, strict=True))
        )
    return bool(live == planned)


def _max_batch_size(config: Config) -> int:
    return int(config.get("max_batch_size", 0))


def _unreachable(error: Any, url: str) -> ServerError:
    return ServerError(
        f"no answer from Triton at {url}: {error.code().name}: {error.details()}",
        remedy="check that it runs with `tritonctl status`; what was measured is kept, "
        "`tritonctl tune --resume` goes on",
    )

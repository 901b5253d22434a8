# SPDX-License-Identifier: Apache-2.0
"""Triton's model control over gRPC: loads models with complete configurations, and unloads them.

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
from tritonclient.grpc import service_pb2

from tritonctl.errors import (
    RequestRejectedError,
    ServerError,
    SettingsRefusedError,
    TritonctlError,
)
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.error_map import PROJECT_SERVER, Advice, is_unanswered
from tritonctl.protocol.model_config import Config, is_decoupled, steps_of

_LOAD_SECONDS = 180.0
_ASK_SECONDS = 5.0
_POLL_SECONDS = 0.01
_READY_SECONDS = 30.0
# A model's state in the index when it is unloaded or was never loaded; before, it is UNLOADING.
_GONE = ("UNAVAILABLE", "")


@dataclass(frozen=True)
class Swap:
    """How to make configurations live: models to unload, then models to load, in order."""

    unload: tuple[str, ...] = ()
    load: tuple[str, ...] = ()


class ModelControl:
    """The models of one server; close it when done.

    `advice`: what to do when the server cannot be reached, for the command that controls it.
    """

    def __init__(self, endpoint: Endpoint, advice: Advice = PROJECT_SERVER) -> None:
        self._connection = Connection(endpoint, advice)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def live(self) -> bool:
        """Whether the server answers at all."""
        try:
            return bool(self._ask(service_pb2.ServerLiveRequest()).live)
        except TritonctlError:
            return False

    def config(self, model: str) -> dict[str, Any]:
        """A model's live configuration. Raises ServerError."""
        answer = self._ask(service_pb2.ModelConfigRequest(name=model))
        config: dict[str, Any] = MessageToDict(answer.config, preserving_proto_field_name=True)
        return config

    def ready(self, model: str) -> bool:
        """Whether a model can answer."""
        try:
            return bool(self._ask(service_pb2.ModelReadyRequest(name=model)).ready)
        except TritonctlError:
            return False

    def versions(self, model: str) -> set[str]:
        """The versions of a model that the server has had so far. Raises ServerError."""
        index = self._ask(service_pb2.RepositoryIndexRequest(), admin=True)
        return {each.version for each in index.models if each.name == model and each.version}

    def load(self, model: str, config: Config | None = None) -> None:
        """Load a model with this complete configuration, or else with that of its repository.

        What a configuration leaves out is Triton's default. Loading an ensemble also loads those
        of its steps again that were loaded with another configuration than their repository's.
        Raises SettingsRefusedError, or ServerError when the server does not answer.
        """
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = json.dumps(config)
        try:
            self._connection.send(request, seconds=_LOAD_SECONDS, admin=True)
        except grpc.RpcError as error:
            if is_unanswered(error):
                raise self._connection.explained(error) from error
            raise SettingsRefusedError(
                f"Triton does not load {model} with these settings: {error.details()}",
                remedy="see `tritonctl logs`",
            ) from error

    def unload(self, model: str, seconds: float = _LOAD_SECONDS) -> bool:
        """Unload a model and wait until it is gone; False when `seconds` did not suffice.

        tritonserver 2.51 never forgets an ensemble's request that was cancelled or failed: the
        models that it had reached stay UNLOADING until the server ends.
        Raises ServerError.
        """
        if not self._unloaded(model):
            request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
            self._ask(request, _LOAD_SECONDS, admin=True)
        deadline = time.monotonic() + seconds
        while not self._unloaded(model):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _unloaded(self, model: str) -> bool:
        index = self._ask(service_pb2.RepositoryIndexRequest(), admin=True)
        return all(each.state in _GONE for each in index.models if each.name == model)

    def _ask(self, request: Any, seconds: float | None = None, *, admin: bool = False) -> Any:
        try:
            return self._connection.ask(request, seconds=seconds or _ASK_SECONDS, admin=admin)
        except RequestRejectedError as error:
            # We ask for models of the project alone: one that is unknown is the server's fault.
            raise ServerError(error.problem, remedy="see `tritonctl logs`") from error

    def wait_until_ready(self, models: Sequence[str]) -> None:
        """Wait until these models can answer. Raises SettingsRefusedError."""
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
        """Collect how long the model cannot answer, in seconds, while the context lasts."""
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
    """The models whose configuration changes, in an order that keeps ensembles loaded if possible.

    Composing models come first, then ensembles, which Triton validates again with every step; but
    an ensemble whose max_batch_size falls comes first: above that of a step it would be unloaded.

    A decoupled step cannot be swapped under its ensemble: tritonserver 2.51 then answers one
    request and hangs in the step's next response. So both are unloaded, the ensemble first.
    """
    changed = [name for name in after if before.get(name) != after[name]]
    decoupled = {n for n in changed if is_decoupled(before.get(n, {})) or is_decoupled(after[n])}
    around = sorted(name for name in after if not decoupled.isdisjoint(steps_of(after[name])))

    def place(name: str) -> tuple[int, str]:
        if "ensemble_scheduling" not in after[name]:
            return 1, name
        falls = _max_batch_size(after[name]) < _max_batch_size(before.get(name, {}))
        return (0 if falls and name not in around else 2), name

    order = sorted({*changed, *around}, key=place)
    return Swap((*around, *sorted(decoupled)), tuple(order))


def includes(live: Any, planned: Any) -> bool:
    """Whether a live configuration says everything that was planned; Triton adds defaults."""
    if isinstance(planned, Mapping):
        return isinstance(live, Mapping) and all(
            includes(live.get(key), value) for key, value in planned.items()
        )
    if isinstance(planned, list):
        return (
            isinstance(live, list)
            and len(live) == len(planned)
            and all(includes(*pair) for pair in zip(live, planned, strict=True))
        )
    return bool(live == planned)


def _max_batch_size(config: Config) -> int:
    return int(config.get("max_batch_size", 0))

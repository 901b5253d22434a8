# SPDX-License-Identifier: Apache-2.0
"""Triton's model control over gRPC: load models with complete configurations, and unload them.

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
# Index states of a model that is unloaded or was never loaded; UNLOADING comes before.
_UNLOADED_STATES = ("UNAVAILABLE", "")


@dataclass(frozen=True)
class Swap:
    """How to apply configurations: first unload, then load, each in order."""

    unload: tuple[str, ...] = ()
    load: tuple[str, ...] = ()


class ModelControl:
    """Controls the models of one server; close it when done.

    `advice`: remedies for an unreachable server.
    """

    def __init__(self, endpoint: Endpoint, advice: Advice = PROJECT_SERVER) -> None:
        self._connection = Connection(endpoint, advice)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def live(self) -> bool:
        """Whether the server answers."""
        try:
            return bool(self._ask(service_pb2.ServerLiveRequest()).live)
        except TritonctlError:
            return False

    def config(self, model: str) -> dict[str, Any]:
        """Return a model's live configuration. Raises ServerError."""
        answer = self._ask(service_pb2.ModelConfigRequest(name=model))
        config: dict[str, Any] = MessageToDict(answer.config, preserving_proto_field_name=True)
        return config

    def ready(self, model: str) -> bool:
        """Whether the model can answer."""
        try:
            return bool(self._ask(service_pb2.ModelReadyRequest(name=model)).ready)
        except TritonctlError:
            return False

    def versions(self, model: str) -> set[str]:
        """Return the model's versions that the server has known so far. Raises ServerError."""
        index = self._ask(service_pb2.RepositoryIndexRequest(), admin=True)
        return {each.version for each in index.models if each.name == model and each.version}

    def load(self, model: str, config: Config | None = None) -> None:
        """Load a model with this complete configuration, by default the repository's.

        Triton uses defaults for missing values. Loading an ensemble also reloads the steps whose
        configuration differs from the repository's. Raises SettingsRefusedError, or ServerError if
        the server does not answer.
        """
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = json.dumps(config)
        try:
            self._connection.send(request, seconds=_LOAD_SECONDS, admin=True)
        except grpc.RpcError as error:
            if is_unanswered(error):
                raise self._connection.to_tritonctl_error(error) from error
            raise SettingsRefusedError(
                f"Triton does not load {model} with these settings: {error.details()}",
                remedy="see `tritonctl logs`",
            ) from error

    def unload(self, model: str, seconds: float = _LOAD_SECONDS) -> bool:
        """Unload a model and wait for it; False if it takes longer than `seconds`.

        tritonserver 2.51 never releases a cancelled or failed request of an ensemble: the models
        that the request reached stay UNLOADING until the server ends. Raises ServerError.
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
        return all(each.state in _UNLOADED_STATES for each in index.models if each.name == model)

    def _ask(self, request: Any, seconds: float | None = None, *, admin: bool = False) -> Any:
        try:
            return self._connection.ask(request, seconds=seconds or _ASK_SECONDS, admin=admin)
        except RequestRejectedError as error:
            # We only name models of the project, so an unknown one is the server's fault.
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
        """Collect the gaps in which the model is not ready, in seconds, during the block."""
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
        unready_since: float | None = None
        while not done.wait(_POLL_SECONDS):
            ready, now = self.ready(model), time.monotonic()
            if not ready and unready_since is None:
                unready_since = now
            elif ready and unready_since is not None:
                gaps.append(now - unready_since)
                unready_since = None
        if unready_since is not None:
            gaps.append(time.monotonic() - unready_since)


def swap(previous: Mapping[str, Config], updated: Mapping[str, Config]) -> Swap:
    """Order the changed models so that ensembles stay loaded if possible.

    Composing models come before ensembles, which Triton validates again with every step. An
    ensemble whose max_batch_size decreases comes first: Triton would unload it if its value were
    above a step's.

    A decoupled step cannot be replaced under its ensemble: tritonserver 2.51 then answers one
    request and hangs in the step's next response. So unload both, the ensemble first.
    """
    changed = [name for name in updated if previous.get(name) != updated[name]]
    decoupled = {
        n for n in changed if is_decoupled(previous.get(n, {})) or is_decoupled(updated[n])
    }
    affected_ensembles = sorted(
        name for name in updated if not decoupled.isdisjoint(steps_of(updated[name]))
    )

    def sort_key(name: str) -> tuple[int, str]:
        if "ensemble_scheduling" not in updated[name]:
            return 1, name
        falls = _max_batch_size(updated[name]) < _max_batch_size(previous.get(name, {}))
        return (0 if falls and name not in affected_ensembles else 2), name

    order = sorted({*changed, *affected_ensembles}, key=sort_key)
    return Swap((*affected_ensembles, *sorted(decoupled)), tuple(order))


def includes(live: Any, planned: Any) -> bool:
    """Whether a live configuration contains all planned values; Triton adds defaults."""
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

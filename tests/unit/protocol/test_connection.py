# SPDX-License-Identifier: Apache-2.0
"""One connection under every gRPC call, and one map from gRPC's errors to ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import (
    RequestRejectedError,
    ServerBusyError,
    ServerError,
    SettingsRefusedError,
    StepGoneError,
    TritonctlError,
    UsageError,
)
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.error_map import PROJECT_SERVER, Advice
from tritonctl.protocol.inspection import inspect
from tritonctl.protocol.model_control import ModelControl
from tritonctl.protocol.restrictions import GRPC_HEADER, new_token
from tritonctl.smoke.recording_client import RecordingClient

NOBODY = "127.0.0.1:1"
PATIENCE_SECONDS = 60.0
ADVICE = Advice("ask the operator")
RESTRICTED = "This protocol is restricted, expecting header 'triton-grpc-protocol-tritonctl-token'"


@dataclass
class Refusing(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays Triton: ends every call with one status, and notes the token that came with it."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    message: str = ""
    tokens: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("ModelReady", "ModelConfig", "ModelInfer", "ServerLive", "ServerMetadata"):
            setattr(self, name, self._refuse)
        for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
            setattr(self, name, self._refuse)

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """The same for a stream."""
        yield self._refuse(next(requests), context)

    def _refuse(self, request: Any, context: Any) -> Any:
        sent = dict(context.invocation_metadata())
        self.tokens[type(request).__name__.removesuffix("Request")] = sent.get(GRPC_HEADER)
        context.abort(self.code, self.message)


@pytest.fixture
def triton() -> Refusing:
    """To be told what to refuse with."""
    return Refusing()


@pytest.fixture
def url(triton: Refusing) -> Iterator[str]:
    """Where it listens."""
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def _ready(url: str) -> None:
    with TritonClient(url) as client:
        client.model_ready("m")


def _infer(url: str) -> None:
    with TritonClient(url) as client:
        client.infer("m", {"ids": np.zeros((1, 1), "int32")})


def _generate(url: str) -> None:
    with TritonClient(url) as client:
        client.generate("m", "7")


def _async_ready(url: str) -> None:
    async def ask() -> None:
        async with AsyncTritonClient(url) as client:
            await client.model_ready("m")

    asyncio.run(ask())


def _inspect(url: str) -> None:
    inspect(Endpoint(url))


def _config(url: str) -> None:
    with ModelControl(Endpoint(url)) as control:
        control.config("m")


def _smoke(url: str) -> None:
    with RecordingClient(Endpoint(url), PATIENCE_SECONDS) as client:
        client.config("m")


Ask = Callable[[str], None]
EVERYBODY = (_ready, _infer, _generate, _async_ready, _inspect, _config, _smoke)


@pytest.mark.parametrize("ask", EVERYBODY)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_proxy_on_the_way_to_this_machine(
    triton: Refusing, url: str, ask: Ask, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy for the network, and no NO_PROXY: a server on loopback is reached all the same."""
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    triton.code, triton.message = grpc.StatusCode.INTERNAL, "arrived"
    with pytest.raises(TritonctlError) as caught:
        ask(url.replace("127.0.0.1", host))
    assert "arrived" in f"{caught.value.problem} {caught.value.details}"


@pytest.mark.parametrize("ask", EVERYBODY)
@pytest.mark.parametrize(
    ("code", "message", "kind", "problem", "remedy"),
    [
        (
            "UNAVAILABLE",
            "Socket closed",
            ServerError,
            "no answer from Triton at {}: UNAVAILABLE: Socket closed",
            "",
        ),
        ("DEADLINE_EXCEEDED", "late", ServerError, "{} did not answer in time", ""),
        (
            "UNAUTHENTICATED",
            "no key",
            UsageError,
            "{} does not accept the API key",
            "--api-key",
        ),
        (
            "UNAVAILABLE",
            "Exceeds maximum queue size",
            ServerBusyError,
            "UNAVAILABLE: the model has a full queue",
            "send the request again later",
        ),
        (
            "INTERNAL",
            "Stub process 'm_0_0' is not healthy",
            StepGoneError,
            "the server has lost a process of the model",
            "tritonctl logs",
        ),
    ],
)
def test_a_status_means_the_same_to_everybody(
    triton: Refusing,
    url: str,
    ask: Ask,
    code: str,
    message: str,
    kind: type[TritonctlError],
    problem: str,
    remedy: str,
) -> None:
    """Clients, model control, inspection and smoke tests read one map."""
    triton.code, triton.message = grpc.StatusCode[code], message
    with pytest.raises(TritonctlError) as caught:
        ask(url)
    assert type(caught.value) is kind
    assert caught.value.problem.startswith(problem.format(url))
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("ask", [_ready, _infer, _generate, _async_ready, _config, _smoke])
def test_a_call_that_wants_the_token(triton: Refusing, url: str, ask: Ask) -> None:
    """The server is there, so nobody is sent to start it."""
    triton.code, triton.message = grpc.StatusCode.UNAVAILABLE, RESTRICTED
    with pytest.raises(
        ServerError, match="refuses this call without its token: the protoc"
    ) as caught:
        ask(url)
    assert "the project that started the server" in caught.value.remedy


@pytest.mark.parametrize("ask", [_ready, _infer, _generate, _async_ready, _smoke])
def test_an_unknown_model_is_a_wrong_request(triton: Refusing, url: str, ask: Ask) -> None:
    """The user named it."""
    triton.code, triton.message = grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'm'"
    with pytest.raises(RequestRejectedError, match="unknown model"):
        ask(url)


def test_a_model_that_left_is_the_server_s_fault(triton: Refusing, url: str) -> None:
    """Model control names only models that were there: the tuner starts the server again."""
    triton.code, triton.message = grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'm'"
    with ModelControl(Endpoint(url)) as control:
        for ask in (control.config, control.unload):
            with pytest.raises(ServerError, match="unknown model"):
                ask("m")
        assert not control.ready("m")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INTERNAL", SettingsRefusedError),
        ("INVALID_ARGUMENT", SettingsRefusedError),
        ("UNAVAILABLE", ServerError),
        ("DEADLINE_EXCEEDED", ServerError),
    ],
)
def test_only_an_answer_refuses_settings(
    triton: Refusing, url: str, code: str, kind: type[TritonctlError]
) -> None:
    """Also one that says that the model's stub has died: its settings may have killed it."""
    triton.code, triton.message = grpc.StatusCode[code], "Stub process 'm_0_0' is not healthy"
    if kind is ServerError:
        triton.message = "gone"
    with ModelControl(Endpoint(url)) as control, pytest.raises(ServerError) as caught:
        control.load("m", {})
    assert type(caught.value) is kind


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED"])
def test_the_remedy_is_the_command_s(triton: Refusing, url: str, code: str) -> None:
    """What to do next depends on what was asked for, not on the status alone."""
    triton.code = grpc.StatusCode[code]
    with ModelControl(Endpoint(url), ADVICE) as control:
        for ask in (control.config, control.load, control.unload):
            with pytest.raises(ServerError) as caught:
                ask("m")
            assert caught.value.remedy == ADVICE.unreachable


def test_only_restricted_protocols_get_the_token(triton: Refusing, url: str) -> None:
    """It goes nowhere else, so that nobody who logs inference calls learns it."""
    token = new_token()
    with ModelControl(Endpoint(url, token=token)) as control:
        for ask in (control.config, control.load, control.unload):
            with pytest.raises(ServerError):
                ask("m")
        assert not control.live()
    with Connection(Endpoint(url, token=token)) as connection:
        with pytest.raises(grpc.RpcError):
            connection.start(service_pb2.ModelInferRequest(), seconds=PATIENCE_SECONDS).result()
        with pytest.raises(grpc.RpcError):
            list(connection.stream(service_pb2.ModelInferRequest(), seconds=PATIENCE_SECONDS))
    open_calls = {name for name, token in triton.tokens.items() if token is None}
    assert open_calls == {"ModelConfig", "ServerLive", "ModelInfer"}
    assert triton.tokens["RepositoryModelLoad"] == triton.tokens["RepositoryIndex"] == token


def test_nobody_listens() -> None:
    """The closed port and the default advice; nothing of tuning."""
    for ask in EVERYBODY:
        with pytest.raises(ServerError, match=f"no answer from Triton at {NOBODY}") as caught:
            ask(NOBODY)
        assert "tritonctl status" in caught.value.remedy
        assert "tune" not in caught.value.remedy
    assert "tritonctl up" in PROJECT_SERVER.unreachable

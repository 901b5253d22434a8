# SPDX-License-Identifier: Apache-2.0
"""Streams through a real Envoy reach only models that the server serves: tritonserver 2.51 crashes
on others (tests/server/test_restart.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.envoy_process import Envoy, project_with
from tests.gateway.test_through_envoy import upstream
from tritonctl.gateway.clusters import TRITON_MODELS, slot_cluster_name
from tritonctl.gateway.envoy import route_configuration
from tritonctl.gateway.placement import EnvoyUpstream, GatewayPlacement, SlotGroups, gateway_of
from tritonctl.gateway.served_models import MODELS, is_stream_route
from tritonctl.gateway.shares import TrafficSplit, _split_routes
from tritonctl.project.rollout import Rollout
from tritonctl.releases.slots import Slot

pytestmark = pytest.mark.timed

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
Seen = list[dict[str, str]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Envoy, Seen]]:
    """Envoy before a server with m, version 1, and n, version 7; what reaches that server."""
    with upstream() as (behind, seen), Envoy(tmp_path_factory.mktemp("envoy"), [behind]) as envoy:
        yield envoy, seen


def request(model: str, version: str = "", tensor_bytes: int = 0) -> bytes:
    """A request with a tensor."""
    message = service_pb2.ModelInferRequest(model_name=model, model_version=version, id="7")
    message.parameters["x"].bool_param = True
    message.raw_input_contents.append(b"\n" * tensor_bytes)
    return bytes(message.SerializeToString())


def answer(
    url: str,
    messages: Sequence[bytes],
    compression: grpc.Compression = grpc.Compression.NoCompression,
) -> tuple[int, grpc.StatusCode, str]:
    """Number of responses, and how the stream ended."""
    with grpc.insecure_channel(url, compression=compression) as channel:
        call = channel.stream_stream(
            METHOD,
            request_serializer=lambda message: message,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        responses = call(iter(messages), timeout=30)
        count = 0
        try:
            for _ in responses:
                count += 1
        except grpc.RpcError as error:
            return count, error.code(), error.details()
        return count, grpc.StatusCode.OK, ""


@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_served_models_pass(served: tuple[Envoy, Seen], size: int) -> None:
    """With and without their version, many on a stream, whatever the size of their tensors."""
    envoy, seen = served
    seen.clear()
    asked = [("m", ""), ("n", "7"), ("m", "1"), ("n", "")]
    messages = [request(*each, tensor_bytes=size) for each in asked]
    assert answer(envoy.url, messages) == (4, grpc.StatusCode.OK, "")
    assert seen == [{"model": model, "version": version} for model, version in asked]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request("nobody"), "model nobody is not served here"),
        (request("mm", tensor_bytes=200_000), "model mm is not served here"),
        (request("m", "7"), "model m version 7 is not served here"),
        (request("x\ny\u00e9"), "model x?y?? is not served here"),
        (request(""), "model_name is missing, or not the first field"),
        (b"", "model_name is missing"),
        (request("m")[3:] + request("m")[:3], "model_name is missing, or not the first field"),
        (request("m") + request("nobody"), "model nobody is not served here"),
        (b"\x0a\xff\xff\xff\x7fm", "malformed message"),
        (b"\x0a\x01m\xff\xff", "malformed message"),
    ],
    ids=range(10),
)
def test_what_is_not_served_ends_its_stream(
    served: tuple[Envoy, Seen], bad: bytes, words: str
) -> None:
    """What came before is answered; neither it nor what follows reaches the server."""
    envoy, seen = served
    seen.clear()
    count, code, details = answer(envoy.url, [request("m"), bad, request("n")])
    assert (code, details) == (grpc.StatusCode.NOT_FOUND, words)
    assert count == len(seen) == 1
    assert answer(envoy.url, [bad])[1:] == (grpc.StatusCode.NOT_FOUND, words)
    assert answer(envoy.url, [request("n")])[:2] == (1, grpc.StatusCode.OK)


def test_compressed_streams_are_refused(served: tuple[Envoy, Seen]) -> None:
    """Nobody could read their names."""
    envoy, seen = served
    seen.clear()
    _, code, details = answer(envoy.url, [request("nobody" * 99)], grpc.Compression.Gzip)
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert details == "streams through the gateway must not be compressed"
    assert seen == []


def test_without_names_no_stream_passes(tmp_path: Path) -> None:
    """The server does not say which models it has."""
    with upstream(b"") as (behind, seen), Envoy(tmp_path, [behind]) as envoy:
        _, code, details = answer(envoy.url, [request("m")])
        assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "no healthy upstream")
        assert not any("model" in each for each in seen)


def test_a_split_stream_needs_a_model_of_both_releases(tmp_path: Path) -> None:
    """The clusters that each route asks for their models."""
    project = project_with({}, tmp_path)
    placement = GatewayPlacement(
        upstreams=(EnvoyUpstream("127.0.0.1"),),
        address="127.0.0.1",
        port=1,
        admin_address="127.0.0.1",
        admin_port=2,
        secrets={},
        slots=SlotGroups(stable=Slot.A, routes_file="r", endpoints="e"),
    )
    configuration = route_configuration(gateway_of(project), placement)
    settings = Rollout(user_header="x-user")
    a, b = (slot_cluster_name(TRITON_MODELS, slot) for slot in Slot)
    for share, users in ((0.0, [a]), (5.0, [a, b])):
        split = _split_routes(configuration, TrafficSplit(Slot.A, share), settings)
        routes = [r for r in split["virtual_hosts"][0]["routes"] if is_stream_route(r)]
        asked = [r["metadata"]["filter_metadata"][MODELS]["clusters"] for r in routes]
        assert asked == [[b], [a], users, [a]]

# SPDX-License-Identifier: Apache-2.0
"""A gateway's API key, from its file to a server that asks for it: real calls, real TLS."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.loadtests.key_gate import Gate, grpc_gate
from tests.unit.conftest import Cli, Sandbox
from tritonctl.cli.options import API_KEY_VARIABLE, AccessOptions
from tritonctl.errors import HostError, TritonctlError, UsageError
from tritonctl.loadtest.run.jobs import resolve_target
from tritonctl.loadtest.run.server_facts import server_facts
from tritonctl.protocol.api_key import HEADER, ApiKey
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.inspection import inspect
from tritonctl.security.certificates import make_certificates

KEY = "5ecret-of-alice"
OUTSIDE = "gateway.example.com:8080"


class _Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def ModelReady(self, *_: Any) -> Any:  # noqa: N802
        """Every model is."""
        return service_pb2.ModelReadyResponse(ready=True)

    def ServerMetadata(self, *_: Any) -> Any:  # noqa: N802
        """A version."""
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")

    def ModelInfer(self, request: Any, _: Any) -> Any:  # noqa: N802
        """No outputs."""
        return service_pb2.ModelInferResponse(model_name=request.model_name)

    def ModelStreamInfer(self, requests: Any, _: Any) -> Iterator[Any]:  # noqa: N802
        """One word."""
        next(requests)
        response = service_pb2.ModelStreamInferResponse()
        answer = response.infer_response
        for name, raw in (
            ("text_output", struct.pack("<I", 5) + b"seven"),
            ("num_input_tokens", struct.pack("<i", 1)),
            ("num_output_tokens", struct.pack("<i", 1)),
            ("finish_reason", struct.pack("<I", 4) + b"stop"),
        ):
            answer.outputs.add(name=name)
            answer.raw_output_contents.append(raw)
        yield response
        final = service_pb2.ModelStreamInferResponse()
        final.infer_response.parameters["triton_final_response"].bool_param = True
        yield final


def gateway(certs: Path | None = None) -> AbstractContextManager[tuple[str, Gate]]:
    """Where it answers, and what it was asked."""
    credentials = None
    if certs is not None:
        pair = (certs / "server.key").read_bytes(), (certs / "server.crt").read_bytes()
        credentials = grpc.ssl_server_credentials([pair])
    return grpc_gate(_Triton(), KEY, credentials)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A key as `openssl rand -hex 32 > FILE` would write one."""
    path = tmp_path / "alice.key"
    path.write_text(f" {KEY}\nnot the key\n")
    return path


def test_every_call_brings_it(file: Path) -> None:
    """Also the questions of `check --url`, and those before a load test."""
    with gateway() as (url, gate):
        with TritonClient(url, api_key=ApiKey(file)) as client:
            assert client.model_ready("speller")
            assert client.generate("speller", "7").text == "seven"
            assert client.infer("speller", {}) == {}
        endpoint = Endpoint(url, api_key=ApiKey(file))
        assert inspect(endpoint).version == "2.51.0"
        assert server_facts("grpc", endpoint, "speller")["server"]["version"] == "2.51.0"
        assert {"ModelReady", "ModelStreamInfer", "ModelInfer", "ServerMetadata"} <= {*gate.calls}


def test_under_asyncio(file: Path) -> None:
    """The same three."""

    async def run(url: str) -> str:
        async with AsyncTritonClient(url, api_key=ApiKey(file)) as client:
            assert await client.model_ready("speller")
            assert await client.infer("speller", {}) == {}
            return (await client.generate("speller", "7")).text

    with gateway() as (url, _):
        assert asyncio.run(run(url)) == "seven"


def test_over_tls(file: Path, tmp_path: Path) -> None:
    """Where it belongs."""
    make_certificates(tmp_path / "certs")
    tls = ClientTls(tmp_path / "certs" / "ca.crt")
    with (
        gateway(tmp_path / "certs") as (url, _),
        TritonClient(url, tls=tls, api_key=ApiKey(file)) as client,
    ):
        assert client.generate("speller", "7").text == "seven"


@pytest.mark.parametrize("keys", [None, "wrong"])
def test_who_has_none_is_told_where_it_goes(tmp_path: Path, keys: str | None) -> None:
    """Of streams, of single answers, and of what `check --url` asks."""
    api_key = None
    if keys is not None:
        (tmp_path / "wrong").write_text(keys)
        api_key = ApiKey(tmp_path / "wrong")
    with gateway() as (url, _), TritonClient(url, api_key=api_key) as client:
        for ask in (
            lambda: client.generate("speller", "7"),
            lambda: client.infer("speller", {}),
            lambda: inspect(Endpoint(url, api_key=api_key)),
        ):
            with pytest.raises(UsageError, match="does not accept the API key") as caught:
                ask()
            assert "--api-key-file" in caught.value.remedy


@pytest.mark.parametrize("url", [OUTSIDE, "192.0.2.7:8080", "[2001:db8::7]:8080"])
def test_never_in_clear_text_to_another_machine(file: Path, url: str) -> None:
    """Refused before anything is sent, unless somebody says that it may be."""
    with pytest.raises(UsageError, match="in clear text") as caught:
        TritonClient(url, api_key=ApiKey(file))
    assert KEY not in str(caught.value.as_record())
    assert Endpoint(url, api_key=ApiKey(file, in_clear=True)).metadata == ((HEADER, KEY),)
    assert Endpoint(url, ClientTls("ca"), api_key=ApiKey(file)).metadata == ((HEADER, KEY),)


@pytest.mark.parametrize("url", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/gateway"])
def test_on_this_machine_it_may(file: Path, url: str) -> None:
    """Nobody is on the way."""
    assert Endpoint(url, api_key=ApiKey(file)).metadata == ((HEADER, KEY),)


def test_the_endpoint_that_goes_on_gets_it_under_the_same_rule(file: Path) -> None:
    """A key must not leave by the back door."""
    with pytest.raises(UsageError, match=r"gateway\.example\.com:8080 in clear text"):
        TritonClient("127.0.0.1:1", resume_on=[OUTSIDE], api_key=ApiKey(file))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        (b"", "it is empty"),
        (b"\nsecond line\n", "it is empty"),
        ("schlüssel".encode(), "other than printable ASCII"),
        (b"a\x00b", "other than printable"),
        (b"\xff\xfe", "cannot be read: not text"),
    ],
)
def test_what_is_no_key(tmp_path: Path, content: bytes | None, told: str) -> None:
    """The file, and what is wrong with it."""
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(HostError, match=re.escape(told)):
        _ = Endpoint("127.0.0.1:1", api_key=ApiKey(tmp_path / "key")).metadata


def test_options(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file by option or variable, for a server that is named; never for the project's own."""

    def named(url: str | None, key: Path | None = None, in_clear: bool = False) -> Endpoint | None:
        return AccessOptions(api_key_file=key, api_key_in_clear=in_clear).endpoint(url)

    assert named("a:1") == Endpoint("a:1")
    assert named("a:1", file, True) == Endpoint("a:1", api_key=ApiKey(file, True))
    with pytest.raises(UsageError, match="need the address of a server"):
        named(None, file)
    with pytest.raises(UsageError, match="--api-key-in-clear requires an API key"):
        named("a:1", None, True)
    monkeypatch.setenv(API_KEY_VARIABLE, str(file))
    assert named("a:1") == Endpoint("a:1", api_key=ApiKey(file))
    assert named(None) is None
    assert named("a:1", Path("other")) == Endpoint("a:1", api_key=ApiKey(Path("other")))


def test_from_the_command_line(file: Path) -> None:
    """By option or variable; without it exit code 2 and the option to use."""
    cli, named = Cli(file.parent), ("--api-key-file", file)
    with gateway() as (url, _):
        ask = ("generate", "speller", "7", "--url", url)
        for done in (cli(*ask, *named), cli(*ask, **{API_KEY_VARIABLE: str(file)})):
            assert (done.returncode, done.stdout) == (0, "seven\n")
        refused = cli(*ask)
        assert (refused.returncode, refused.stdout.strip()) == (UsageError.exit_code, "")
        assert "--api-key-file" in refused.stderr
        seen = cli("check", "--url", url, file.parent, *named)
        assert seen.returncode == 0, seen.stderr
    refused = cli("generate", "speller", "7", "--url", OUTSIDE, *named)
    assert (refused.returncode, "in clear text" in refused.stderr) == (UsageError.exit_code, True)
    assert KEY not in refused.stdout + refused.stderr


def test_compare_takes_the_options_for_servers_only(file: Path, sandbox: Sandbox) -> None:
    """Both sides under the same rule; stored runs have nobody to show anything to."""
    cli, key = Cli(sandbox.root), ("--api-key-file", file)
    scenario = {
        "model": "m",
        "requests": [{"prompts": str(file)}],
        "arrivals": {"process": "constant", "rate": 1},
        "count": 1,
    }
    load = ("--set", f"loadtests={json.dumps({'one': scenario})}")
    refused = cli("loadtest", "compare", "127.0.0.1:1", OUTSIDE, *key, *load)
    assert refused.returncode == UsageError.exit_code
    assert "in clear text" in refused.stderr, refused.stderr
    refused = cli("loadtest", "compare", "a", "b", "--ca", "ca.crt")
    assert refused.returncode == UsageError.exit_code
    assert "need the address of a server" in refused.stderr, refused.stderr


def test_a_load_test_of_http_has_no_tls(file: Path) -> None:
    """So neither a certificate nor a key may seem to be protected."""
    project: Any = None  # not looked at: the server is named
    with pytest.raises(UsageError, match="do not support TLS over HTTP"):
        resolve_target(project, "http", Endpoint(OUTSIDE, ClientTls("ca"), api_key=ApiKey(file)))
    with pytest.raises(UsageError, match="in clear text"):
        resolve_target(project, "http", Endpoint(f"http://{OUTSIDE}/", api_key=ApiKey(file)))
    found = resolve_target(project, "http", Endpoint("http://127.0.0.1:1/", api_key=ApiKey(file)))
    assert found.endpoint == Endpoint("127.0.0.1:1", api_key=ApiKey(file))


def test_no_secret_shows(file: Path) -> None:
    """Of a key only the path is in anything that is printed or stored."""
    endpoint = Endpoint("127.0.0.1:1", api_key=ApiKey(file))
    assert KEY not in repr(endpoint)
    with pytest.raises(TritonctlError) as caught:
        _ = Endpoint(OUTSIDE, api_key=ApiKey(file)).metadata
    assert KEY not in json.dumps(caught.value.as_record())

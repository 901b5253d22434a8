# SPDX-License-Identifier: Apache-2.0
"""Load generators behind a gateway: they bring the key of the plan's file, and never show it."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
from loadlib.api_key import key_headers
from loadlib.refusal import RunRefusedError

from tests.conftest import Cli, write_project
from tests.loadtests.conftest import Generate, command
from tests.loadtests.endpoint import Endpoint
from tests.loadtests.key_gate import grpc_gate, http_gate
from tests.loadtests.locust_process import Process, read_records
from tritonctl.host.progress import Silent
from tritonctl.loadtest.analysis.records import read_records as stored_records
from tritonctl.loadtest.run.environment import generator_python
from tritonctl.security.certificates import make_certificates

KEY = "5ecret-of-alice"
COUNT = 10


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A key."""
    path = tmp_path / "alice.key"
    path.write_text(f"{KEY}\n")
    return path


def of(plan: dict[str, Any], protocol: str, url: str, file: Path | None) -> dict[str, Any]:
    """The plan, for this endpoint."""
    endpoint = {"protocol": protocol, "url": url}
    endpoint |= {"api_key_file": str(file)} if file else {}
    return plan | {"endpoint": endpoint, "count": COUNT}


def gate(protocol: str) -> AbstractContextManager[tuple[str, Any]]:
    """What answers only who has the key."""
    return http_gate(KEY) if protocol == "http" else grpc_gate(Endpoint(), KEY)


def test_every_request_brings_it(generate: Generate, plan: dict[str, Any], file: Path) -> None:
    """The first questions, too."""
    with gate("grpc") as (url, seen):
        run = generate(of(plan, "grpc", url, file))
    assert (run.code, len(run.records)) == (0, COUNT), run.stderr
    assert {record["outcome"] for record in run.records} == {"ok"}
    assert {"ModelReady", "ModelMetadata", "ModelStreamInfer"} == {*seen.calls}
    assert KEY not in run.stderr + json.dumps([run.records, run.progress])


def test_without_it(generate: Generate, plan: dict[str, Any]) -> None:
    """Exit 3 at once, and the option to use."""
    with gate("grpc") as (url, _):
        run = generate(of(plan, "grpc", url, None))
    assert (run.code, run.records) == (3, [])
    assert "requires a valid API key" in json.loads(run.stderr)["problem"]
    assert "--api-key-file" in json.loads(run.stderr)["remedy"]


@pytest.mark.server
@pytest.mark.parametrize(
    ("engine", "protocol", "keyed"),
    [
        ("generator.py", "grpc", True),
        ("generator.py", "http", True),
        ("generator.py", "http", False),
        ("locust_generator.py", "grpc", True),
        ("locust_generator.py", "grpc", False),
    ],
)
def test_in_the_generators_own_environment(
    engine: str, protocol: str, keyed: bool, plan: dict[str, Any], file: Path, tmp_path: Path
) -> None:
    """Both engines over both protocols; the key is in no argument, no log, no record."""
    if protocol == "http":
        del plan["classes"][0]["max_tokens"]
    folder = tmp_path / "run"
    with gate(protocol) as (url, _):
        written = of(plan, protocol, url, file if keyed else None)
        arguments = command(written, folder)[2:]
        if engine != "generator.py":
            arguments = arguments[: arguments.index("--worker")]
        process = Process(generator_python(Silent()), engine, arguments, folder)
        code = process.end()
    assert code == (0 if keyed else 3), process.log
    if keyed:
        records = read_records(folder)
        assert [record["outcome"] for record in records] == ["ok"] * COUNT
    else:
        assert "--api-key-file" in process.log
    left = "".join(path.read_text(errors="replace") for path in folder.iterdir() if path.is_file())
    assert KEY not in left + str(process.popen.args)


@pytest.mark.server
def test_two_servers_behind_tls_and_a_key(cli: Cli, file: Path, tmp_path: Path) -> None:
    """`compare` takes the options of `run`, for both sides; without the key it ends at once."""
    write_project(tmp_path, {"text": "int8"})
    certs, prompts = tmp_path / "certs", tmp_path / "prompts.txt"
    make_certificates(certs)
    prompts.write_text("one\ntwo\n", encoding="utf-8")
    scenario = {
        "model": "text",
        "requests": [{"name": "short", "prompts": str(prompts), "max_tokens": 4}],
        "arrivals": {"process": "constant", "rate": 40},
        "count": COUNT,
    }
    chosen = ("--set", f"loadtests={json.dumps({'short': scenario})}", "--json")
    secured = ("--ca", "certs/ca.crt", "--api-key-file", file.name)
    pair = (certs / "server.key").read_bytes(), (certs / "server.crt").read_bytes()
    credentials = grpc.ssl_server_credentials([pair])
    with (
        grpc_gate(Endpoint(), KEY, credentials) as (left, _),
        grpc_gate(Endpoint(), KEY, credentials) as (right, _),
    ):
        compare = ("loadtest", "compare", left, right, "--rounds", "1")
        done = cli(*compare, *chosen, *secured, cwd=tmp_path)
        refused = cli(*compare, *chosen, *secured[:2], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for side, url in (("left", left), ("right", right)):
        folder = tmp_path / ".tritonctl" / "loadtests" / told[side][0]
        assert json.loads((folder / "plan.json").read_text())["endpoint"]["url"] == url
        assert len(stored_records(folder)) == COUNT
        left_behind = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert not any(KEY.encode() in content for content in left_behind)
    assert refused.returncode != 0
    assert "--api-key-file" in refused.stderr + refused.stdout


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read: No such"), (b"", "not an API key"), (b"\xff\xfe", "it is not text")],
)
def test_bad_key_files(tmp_path: Path, content: bytes | None, told: str) -> None:
    """The field, the file, and why."""
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RunRefusedError, match=told) as caught:
        key_headers(file)
    assert caught.value.problem.startswith("endpoint.api_key_file: ")

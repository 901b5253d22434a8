# SPDX-License-Identifier: Apache-2.0
"""`--lora` and `--guide` of generate and chat, down to the tensors that a server gets."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.cli.sampling_options import EngineSamplingOptions
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tests.unit.conftest import Cli

SCHEMA = '{"type": "object"}'


@dataclass
class Listener(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays Triton: notes the text tensors of each request and answers with nothing."""

    url: str = ""
    texts: list[dict[str, str]] = field(default_factory=list)

    def ModelStreamInfer(self, requests: Any, _: Any) -> Iterator[Any]:  # noqa: N802
        """One request in, the final response out."""
        request = next(requests)
        pairs = zip(request.inputs, request.raw_input_contents, strict=True)
        self.texts.append(
            {
                tensor.name: raw[struct.calcsize("<I") :].decode()
                for tensor, raw in pairs
                if tensor.datatype == "BYTES"
            }
        )
        response = service_pb2.ModelStreamInferResponse()
        response.infer_response.parameters["triton_final_response"].bool_param = True
        yield response


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A server on a port of its own."""
    listener = Listener()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(listener, server)
    listener.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield listener
    server.stop(0).wait()


def test_generate_sends_adapter_and_guide(listener: Listener, cli: Cli, tmp_path: Path) -> None:
    """The schema is read from its file."""
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA, encoding="utf-8")
    options = ("--lora", "french", "--guide", f"json_schema=@{file}")
    done = cli("generate", "speller", "7", "--url", listener.url, *options)
    assert done.returncode == 0, done.stderr
    [texts] = listener.texts
    assert texts == {
        "text_input": "7",
        "lora_name": "french",
        "guided_decoding_guide_type": "json_schema",
        "guided_decoding_guide": SCHEMA,
    }


def test_nothing_is_sent_unasked(listener: Listener, cli: Cli) -> None:
    """Most engines have neither tensor, and would refuse the request."""
    assert cli("generate", "speller", "7", "--url", listener.url).returncode == 0
    assert listener.texts == [{"text_input": "7"}]


def test_chat_sends_them_with_every_turn(listener: Listener, tmp_path: Path) -> None:
    """The same options."""
    options = ["--url", listener.url, "--lora", "fr", "--guide", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "tritonctl", "chat", "speller", *options],
        cwd=tmp_path,
        input="1\n2\n",
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(listener.texts) == 2
    for texts in listener.texts:
        assert (texts["lora_name"], texts["guided_decoding_guide_type"]) == ("fr", "json")
        assert "guided_decoding_guide" not in texts


@pytest.mark.parametrize(
    ("guide", "kind", "text"),
    [
        ("json", "json", None),
        ("regex=a=b|@c", "regex", "a=b|@c"),
        ('json_schema={"const": 7}', "json_schema", '{"const": 7}'),
        ("ebnf_grammar=root ::= [0-9]", "ebnf_grammar", "root ::= [0-9]"),
    ],
)
def test_guides(guide: str, kind: str, text: str | None) -> None:
    """Type and text, parted at the first `=`."""
    made = EngineSamplingOptions(guide=guide).fields()
    assert (made["guided_decoding_guide_type"], made["guided_decoding_guide"]) == (kind, text)


@pytest.mark.parametrize(
    ("guide", "problem"),
    [
        ("", "--guide is ``, expected one of json, json_schema, regex, ebnf_grammar"),
        ("choice=a", "--guide is `choice`"),
        ("json={}", "--guide json takes no text"),
        ("regex", "--guide regex has no text"),
        ("regex=", "--guide regex has no text"),
        ("json_schema={", "--guide json_schema is not JSON: "),
        ("ebnf_grammar=@nowhere.ebnf", "--guide: nowhere.ebnf cannot be read: "),
    ],
)
def test_what_is_no_guide_is_refused(guide: str, problem: str) -> None:
    """Before a server is asked; exit code 2."""
    with pytest.raises(UsageError) as caught:
        EngineSamplingOptions(guide=guide).fields()
    assert caught.value.problem.startswith(problem)
    assert caught.value.exit_code == 2

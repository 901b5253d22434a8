# SPDX-License-Identifier: Apache-2.0
"""`tritonctl infer`: what is typed becomes tensors that fit, or is refused; answers come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.json_page import as_documented
from tritonctl.errors import UsageError
from tritonctl.protocol.server_description import TensorMetadata
from tritonctl.protocol.tensor_arguments import parse_tensors

if TYPE_CHECKING:
    from tests.unit.conftest import Cli

IDS = TensorMetadata("ids", "INT32", (-1, 2))
SCALE = TensorMetadata("scale", "FP16", (-1, 1))
TEXT = TensorMetadata("text", "BYTES", (-1, 1))
DECLARED = (IDS, SCALE, TEXT)


class Echo(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays Triton: answers with its inputs."""

    def ServerMetadata(self, _: Any, __: Any) -> Any:  # noqa: N802
        """It is there."""
        return service_pb2.ServerMetadataResponse(name="triton")

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The inputs above, of one model."""
        if request.name not in {"echo", "stream", "text_stream"}:
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        answer = service_pb2.ModelMetadataResponse(name=request.name)
        for tensor in DECLARED:
            answer.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if request.name == "text_stream":
            answer.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        return answer

    def ModelConfig(self, request: Any, _: Any) -> Any:  # noqa: N802
        """Some streams; those of text are named so."""
        answer = service_pb2.ModelConfigResponse()
        answer.config.model_transaction_policy.decoupled = request.name.endswith("stream")
        return answer

    def ModelInfer(self, request: Any, _: Any) -> Any:  # noqa: N802
        """Each input is an output."""
        answer = service_pb2.ModelInferResponse()
        for tensor in request.inputs:
            answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        answer.raw_output_contents.extend(request.raw_input_contents)
        return answer


@pytest.fixture
def url() -> Iterator[str]:
    """A server on a port of its own."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_there_and_back(cli: Cli, url: str, tmp_path: Path) -> None:
    """Numbers, a file of NumPy's, a text without quotes; JSON on standard output."""
    file = tmp_path / "scale.npy"
    np.save(file, np.array([[0.5]], dtype="float32"))
    given = ("ids=[[1, 2], [3, 4]]", f"scale=@{file}", "text=zwei Wörter")
    options = [part for text in given for part in ("--input", text)]
    done = cli("infer", "echo", "--url", url, *options)
    assert done.returncode == 0, done.stderr
    document = as_documented("infer", cli("infer", "echo", "--url", url, "--json", *options).stdout)
    assert (
        json.loads(done.stdout)
        == document["outputs"]
        == {
            "ids": [[1, 2], [3, 4]],
            "scale": [[0.5]],
            "text": [["zwei Wörter"]],
        }
    )


def test_without_inputs(cli: Cli, url: str) -> None:
    """Nobody knows them by heart: each with its type and shape."""
    done = cli("infer", "echo", "--url", url)
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert "no --input is given" in told
    assert "--input NAME=VALUE; the model's inputs: ids (INT32, [" in told


def test_outputs_as_files(cli: Cli, url: str, tmp_path: Path) -> None:
    """One per output, nothing pickled, nothing left over."""
    source, folder = tmp_path / "ids.json", tmp_path / "out"
    source.write_text("[[5, 6]]", encoding="utf-8")
    options = ("--input", f"ids=@{source}", "--input", "text=seven", "--output", str(folder))
    done = cli("infer", "echo", "--url", url, "--json", *options)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)["outputs"]) == ["ids", "text"]
    assert sorted(file.name for file in folder.iterdir()) == ["ids.npy", "text.npy"]
    assert np.load(folder / "ids.npy").tolist() == [[5, 6]]
    assert np.load(folder / "ids.npy").dtype == np.int32
    assert np.load(folder / "text.npy", allow_pickle=False).tolist() == [[b"seven"]]


def test_a_model_that_is_not_served(cli: Cli, url: str) -> None:
    """Exit code 2 and Triton's words; 7 where nobody listens."""
    done = cli("infer", "other", "--url", url, "--input", "ids=[[1, 2]]")
    assert done.returncode == 2
    assert "does not serve other: unknown model" in " ".join(done.stderr.split())
    assert cli("infer", "echo", "--url", "127.0.0.1:1", "--input", "ids=1").returncode == 7


@pytest.mark.parametrize(
    ("model", "remedy"),
    [("text_stream", "tritonctl generate text_stream PROMPT"), ("stream", "ModelStreamInfer")],
)
def test_a_model_that_streams(cli: Cli, url: str, model: str, remedy: str) -> None:
    """Told before its tensors are looked at, with what to use instead."""
    done = cli("infer", model, "--url", url, "--input", "ids=nonsense")
    assert done.returncode == 2
    assert "the model streams" in done.stderr
    assert remedy in " ".join(done.stderr.split())


def test_types_are_the_model_s() -> None:
    """One value stands for a tensor of one; a fraction is rounded as the type wants it."""
    made = parse_tensors(DECLARED, ["scale=0.1", 'text=[["a"], ["b"]]'])
    assert (made["scale"].dtype.name, made["scale"].shape) == ("float16", (1, 1))
    assert made["text"].tolist() == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ids", "it has no `=`"),
        ("idz=[[1, 2]]", "the model has no input `idz`"),
        ("ids=[1, 2]", r"has the shape \[2\], the model takes \[-1, 2\]"),
        ("ids=[[1, 2, 3]]", r"has the shape \[1, 3\]"),
        ("ids=[[1, 2], [3]]", "--input ids: "),
        ("ids=[[1.5, 2]]", "float64 does not fit into INT32"),
        ("ids=[[1, 4294967296]]", "int64 does not fit into INT32"),
        ('ids=[["1", "2"]]', "does not fit into INT32"),
        ("ids=one", "one is not JSON"),
        (f"ids={'[' * 100_000}", "is not JSON: maximum recursion depth"),
        (f"ids={'[' * 900}{']' * 900}", "--input ids: "),
        ("ids=@nowhere.npy", "nowhere.npy cannot be read"),
        ("scale=1e6", "float64 does not fit into FP16"),
        ("text=[[7]]", "contains values that are not texts"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, problem: str) -> None:
    """Before the server is asked to compute; exit code 2."""
    with pytest.raises(UsageError, match=problem) as caught:
        parse_tensors(DECLARED, [text])
    assert caught.value.exit_code == 2


def test_twice_and_pickled(tmp_path: Path) -> None:
    """Of two values none is right; a pickle is never opened."""
    with pytest.raises(UsageError, match="ids is given twice"):
        parse_tensors(DECLARED, ["ids=[[1, 2]]", "ids=[[1, 2]]"])
    file = tmp_path / "object.npy"
    np.save(file, np.array([["a"]], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"object\.npy cannot be read"):
        parse_tensors(DECLARED, [f"text=@{file}"])

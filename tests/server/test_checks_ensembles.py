# SPDX-License-Identifier: Apache-2.0
"""What the rules on ensembles say happens under traffic, seen on a real Triton."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.check_models.ensembles import ENSEMBLE, ensemble
from tests.judge import PATIENCE, Judge, proven
from tests.unit.checks.repositories import put
from tritonctl.checks.examples.files import Example
from tritonctl.checks.rules import RULES

pytestmark = pytest.mark.server

# What never ends is given up after this many seconds.
NEVER = 5.0
TEXT = b"\x01\x00\x00\x00a"


class Server(Judge):
    """A Judge that also sends requests to `m`."""

    def serve(self, files: Example) -> bool:
        """Load `m` and its steps in place of everything else; returns whether it is decoupled."""
        self.clear()
        shutil.rmtree(self._repository)
        put(self._repository, files)
        assert self._load("m") == ""
        asked = service_pb2.ModelConfigRequest(name="m")
        return bool(self._stub.ModelConfig(asked).config.model_transaction_policy.decoupled)

    def infer(self, rows: int = 1, width: int = 1, patience: float = PATIENCE) -> list[int]:
        """The shape of the answer to TEXT. Raises grpc.RpcError."""
        shape = [rows, width]
        tensor = service_pb2.ModelInferRequest.InferInputTensor(
            name="TEXT", datatype="BYTES", shape=shape
        )
        return self._infer(tensor, TEXT * rows * width, patience)

    def infer_ids(self, patience: float) -> list[int]:
        """The same for an ensemble that reads `ids`."""
        tensor = service_pb2.ModelInferRequest.InferInputTensor(
            name="ids", datatype="INT32", shape=[1, 4]
        )
        return self._infer(tensor, bytes(16), patience)

    def ask(self, name: str, datatype: str, rows: int, content: bytes) -> bytes:
        """The raw answer to rows of one input; `content` as Triton has it in a request."""
        width = 1 if datatype == "BYTES" else len(content) // 4 // rows
        return self.send((name, datatype, [rows, width], content))

    def send(self, *given: tuple[str, str, list[int], bytes]) -> bytes:
        """The raw answer to inputs: name, type, shape, content."""
        tensor = service_pb2.ModelInferRequest.InferInputTensor
        request = service_pb2.ModelInferRequest(
            model_name="m",
            inputs=[tensor(name=name, datatype=kind, shape=size) for name, kind, size, _ in given],
            raw_input_contents=[content for *_, content in given],
        )
        return bytes(self._stub.ModelInfer(request, timeout=PATIENCE).raw_output_contents[0])

    def _infer(
        self,
        tensor: service_pb2.ModelInferRequest.InferInputTensor,
        content: bytes,
        patience: float,
    ) -> list[int]:
        request = service_pb2.ModelInferRequest(
            model_name="m", inputs=[tensor], raw_input_contents=[content]
        )
        [output] = self._stub.ModelInfer(request, timeout=patience).outputs
        return list(output.shape)

    def fails(self, rows: int = 1, width: int = 1) -> str:
        """Why a request fails; "" when it does not."""
        try:
            self.infer(rows, width)
        except grpc.RpcError as error:
            return str(error.details())
        return ""


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests."""
    server = Server(tmp_path_factory.mktemp("ensembles"))
    yield server
    server.stop()


@pytest.fixture
def server(one_server: Server, request: pytest.FixtureRequest) -> Server:
    """As it is, or another one."""
    return proven(one_server, request)


def test_an_input_that_a_step_writes(server: Server) -> None:
    """The step feeds itself: the request is never answered, and the server suffers."""
    rule = RULES["TC317"]
    server.serve(rule.good_example)
    assert server.infer_ids(PATIENCE) == [1, 2]
    server.serve(rule.bad_example)
    with pytest.raises(grpc.RpcError) as caught:
        server.infer_ids(NEVER)
    assert caught.value.code() in (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
    )
    server.restart()


def test_shapes_that_a_variable_one_hides(server: Server) -> None:
    """No length suits both readers; with equal ones, theirs does."""
    rule = RULES["TC326"]
    server.serve(rule.bad_example)
    for width in (1, 2):
        assert "unexpected shape for input 'TEXT'" in server.fails(width=width)
    server.serve(rule.good_example)
    assert server.infer() == [1, 2]


def test_an_optional_input_that_a_step_requires(server: Server) -> None:
    """The request may leave it out, and then the step fails."""
    rule = RULES["TC327"]
    server.serve(rule.bad_example)
    assert "missing required input(s) ['LANGUAGE']" in server.fails()
    server.serve(rule.good_example)
    assert server.infer() == [1, 2]


def test_a_batch_for_a_step_without_batching(server: Server) -> None:
    """One row gets through, two do not, unless the dims have a first one that varies."""
    rule = RULES["TC332"]
    server.serve(rule.bad_example)
    assert server.infer() == [1, 2]
    assert "Expected [4], got [2,4]" in server.fails(rows=2)
    server.serve(rule.good_example)
    assert server.infer(rows=2) == [2, 2]


def test_an_answer_without_its_batch(server: Server) -> None:
    """A step without batching makes one row of all."""
    last = {
        "classify/config.pbtxt": str(RULES["TC332"].good_example["classify/config.pbtxt"]).replace(
            "dims: [ -1, 2 ]", "dims: [ 2 ]"
        ),
        "classify/1/model.py": str(RULES["TC332"].bad_example["classify/1/model.py"]),
    }
    server.serve(ensemble(ENSEMBLE) | last)
    assert server.infer(rows=2) == [1, 2]


def test_the_steps_say_whether_it_is_decoupled(server: Server) -> None:
    """Whatever the ensemble says itself."""
    rule = RULES["TC342"]
    assert server.serve(rule.bad_example) is False
    assert server.infer() == [1, 2]
    assert server.serve(rule.good_example) is True


def texts(*given: bytes) -> bytes:
    """As BYTES: each behind its length."""
    return b"".join(len(text).to_bytes(4, "little") + text for text in given)


def test_a_mask_that_is_not_read(server: Server) -> None:
    """A short text's vector is another one beside a long text; with the mask it is the same."""
    alone, long = texts(b"one"), texts(b"of many words here")
    for example, same in ((RULES["TC351"].bad_example, False), (RULES["TC351"].good_example, True)):
        server.serve(example)
        vector = server.ask("TEXT", "BYTES", 1, alone)
        together = server.ask("TEXT", "BYTES", 2, alone + long)
        assert (together[: len(vector)] == vector) is same


def test_labels_of_another_model(server: Server) -> None:
    """The best score has no label in a list that is too short."""
    server.serve(RULES["TC352"].bad_example)
    with pytest.raises(grpc.RpcError, match="list index out of range"):
        server.ask("x", "FP32", 1, bytes(12))
    server.serve(RULES["TC352"].good_example)
    assert server.ask("x", "FP32", 1, bytes(12)) == texts(b"good")


def test_images_of_another_size(server: Server) -> None:
    """Refused between the steps."""
    server.serve(RULES["TC353"].bad_example)
    with pytest.raises(grpc.RpcError, match="unexpected shape for input 'pixel_values'"):
        server.ask("image", "BYTES", 1, texts(b"image"))
    server.serve(RULES["TC353"].good_example)
    assert len(server.ask("image", "BYTES", 1, texts(b"image"))) == 12


def test_a_pooling_of_another_model(server: Server) -> None:
    """Two tokens' states: the vector is the first one's, and the mean's as modules.json says."""
    states = struct.pack("<8f", *(1, 0, 0, 0), *(0, 0, 0, 1))
    rule, half = RULES["TC354"], 0.5**0.5
    for example, vector in (
        (rule.bad_example, (1, 0, 0, 0)),
        (rule.good_example, (half, 0, 0, half)),
    ):
        server.serve(example)
        answer = server.send(
            ("last_hidden_state", "FP32", [1, 2, 4], states),
            ("attention_mask", "INT64", [1, 2], struct.pack("<2q", 1, 1)),
        )
        assert struct.unpack("<4f", answer) == pytest.approx(vector)


def test_a_circle_elsewhere_kills_the_server(server: Server) -> None:
    """What only leads to ensembles in a circle ends tritonserver when it is loaded."""

    def around(name: str, inner: str) -> dict[str, str]:
        text = str(RULES["TC307"].good_example["m/config.pbtxt"])
        text = text.replace('name: "m"', f'name: "{name}"').replace('"inner"', f'"{inner}"')
        return {f"{name}/config.pbtxt": text, f"{name}/1/.keep": ""}

    circle = around("m", "a") | around("a", "b") | around("b", "a")
    assert server.refuses(circle) == "the server hangs or ends"

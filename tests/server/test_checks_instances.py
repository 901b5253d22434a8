# SPDX-License-Identifier: Apache-2.0
"""What the rules on instances say happens under traffic, seen on a real Triton."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import grpc
import pytest

from tests.judge import PATIENCE
from tests.served import NEVER, VALUES, Served
from tritonctl.checks.examples.files import Example
from tritonctl.checks.rules import RULES

pytestmark = pytest.mark.server


class Server(Served):
    """A server for each example: what stands still stays behind."""

    def serve(self, files: Example) -> None:
        """Load its models, `m` last. Raises grpc.RpcError."""
        self.restart()
        super().serve(files)

    def came(self) -> int:
        """How many requests have left a file."""
        return len(list(self._repository.glob("m/1/*.came")))


class LimitedServer(Server):
    """The same with the rate limiter."""

    def _start(self) -> None:
        script = self._folder / "limited"
        if not script.exists():
            limited = f'exec {self._installation.binary} --rate-limit=execution_count "$@"'
            script.write_text(f"#!/bin/sh\n{limited}\n", encoding="utf-8")
            script.chmod(0o755)
            self._installation = replace(self._installation, binary=script)
        super()._start()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One at a time."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With --rate-limit=execution_count."""
    server = LimitedServer(tmp_path_factory.mktemp("limited"))
    yield server
    server.stop()


def test_a_model_that_waits_for_itself(server: Server) -> None:
    """The bad one loads and never answers; the good one answers."""
    server.serve(RULES["TC650"].bad_example)
    assert server.stands_still()
    server.serve(RULES["TC650"].good_example)
    assert server.infer() == VALUES


def test_nothing_but_passive_instances(server: Server) -> None:
    """The server does not outlive the first request."""
    server.serve(RULES["TC607"].bad_example)
    with pytest.raises(grpc.RpcError):
        server.infer()
    assert server.died() != 0
    server.serve(RULES["TC607"].good_example)
    assert server.infer() == VALUES


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("TC652", "Model 'n' is not ready"),
        ("TC653", "unexpected inference output"),
        ("TC655", "no running event loop"),
    ],
)
def test_what_is_answered_with_an_error(name: str, told: str, server: Server) -> None:
    """Every request to the bad one; the good one answers."""
    server.serve(RULES[name].bad_example)
    with pytest.raises(grpc.RpcError) as caught:
        server.infer()
    assert caught.value.code() != grpc.StatusCode.DEADLINE_EXCEEDED
    assert told in str(caught.value.details())
    server.serve(RULES[name].good_example)
    assert server.infer() == VALUES


def test_an_input_that_the_model_asked_does_not_have(server: Server) -> None:
    """The other half of TC653."""
    rule = RULES["TC653"]
    code = rule.good_example["m/1/model.py"]
    assert isinstance(code, str)
    made = 'inputs=[pb_utils.Tensor("IN", tensor.as_numpy())]'
    server.serve({**rule.good_example, "m/1/model.py": code.replace("inputs=[tensor]", made)})
    with pytest.raises(grpc.RpcError, match="IN"):
        server.infer()


# Asks itself as long as the first value is above 1, but not before as many requests as the last
# one says have come; each leaves a file.
ROUND = """\
import os
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

CAME = pathlib.Path(__file__).parent


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            output = pb_utils.Tensor("OUTPUT", values)
            if values[0][0] > 1:
                (CAME / f"{os.getpid()}-{time.monotonic_ns()}.came").touch()
                while len(list(CAME.glob("*.came"))) < values[0][3]:
                    time.sleep(0.01)
                given = pb_utils.Tensor("INPUT", values - np.float32([1, 0, 0, 0]))
                asked = pb_utils.InferenceRequest(
                    model_name="m", requested_output_names=["OUTPUT"], inputs=[given]
                )
                output = pb_utils.get_output_tensor_by_name(asked.exec(), "OUTPUT")
            answers.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return answers
"""


def test_a_circle_holds_until_all_instances_are_busy(server: Server) -> None:
    """One request alone is answered; two at once wait and wait."""
    server.serve({**RULES["TC651"].bad_example, "m/1/model.py": ROUND})
    assert server.infer([2.0, 2.0, 3.0, 1.0]) == [1.0, 2.0, 3.0, 1.0]
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(server.infer, [2.0, 2.0, 3.0, 3.0]) for _ in range(2)]
        deadline = time.monotonic() + PATIENCE
        while server.came() < 3:
            assert time.monotonic() < deadline, "the second request never came"
            time.sleep(0.05)
        assert wait(both, NEVER).done == set()
        server.restart()  # which ends them


def test_a_count_of_zero(server: Server) -> None:
    """It counts as absent."""
    server.serve(RULES["TC605"].bad_example)
    assert server.instances() == 1
    assert server.infer() == VALUES


def test_a_resource_global_here_and_not_there(limited: Server) -> None:
    """The model that comes second is refused."""
    # Now and then refusing it takes the server for ever.
    with pytest.raises(grpc.RpcError, match=r"both global and device-specific|DEADLINE_EXCEEDED"):
        limited.serve(RULES["TC640"].bad_example)
    limited.serve(RULES["TC640"].good_example)
    assert limited.infer() == VALUES


def test_a_resource_held_while_waiting_for_it(limited: Server, server: Server) -> None:
    """With the rate limiter for ever, without it not at all."""
    limited.serve(RULES["TC641"].bad_example)
    assert limited.stands_still()
    limited.serve(RULES["TC641"].good_example)
    assert limited.infer() == VALUES
    server.serve(RULES["TC641"].bad_example)
    assert server.infer() == VALUES

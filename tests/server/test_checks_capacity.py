# SPDX-License-Identifier: Apache-2.0
"""What happens when shared memory is too small, seen on a real Triton whose /dev/shm is small."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.judge import PATIENCE
from tests.served import Served, floats
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

pytestmark = pytest.mark.server

SHM_BYTES = 16_000_000
SIDE = 512
SMALL = f'mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && exec "$0" "$@"'
# Pictures in, four numbers out.
PICTURES = {
    "m/config.pbtxt": CONFIG.replace("dims: [ 4 ]", f"dims: [ 3, {SIDE}, {SIDE} ]", 1),
    "m/1/model.py": MODEL.replace('"OUTPUT", tensor', '"OUTPUT", tensor[:, 0, 0, :4]'),
}


class SmallServer(Served):
    """A server that sees a /dev/shm of its own."""

    def _start(self) -> None:
        script = self._folder / "small"
        if not script.exists():
            command = f"unshare --mount sh -c '{SMALL}' {self._installation.binary}"
            script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
            script.chmod(0o755)
            self._installation = replace(self._installation, binary=script)
        super()._start()

    def pictures(self, count: int) -> list[float]:
        """The answer to a batch of so many. Raises grpc.RpcError."""
        values = np.full((count, 3, SIDE, SIDE), 7, np.float32)
        request = service_pb2.ModelInferRequest(model_name="m")
        request.inputs.add(name="INPUT", datatype="FP32", shape=values.shape)
        request.raw_input_contents.append(values.tobytes())
        response = self._stub.ModelInfer(request, timeout=PATIENCE)
        return floats(response.raw_output_contents[0])


STUBS = SHM_BYTES >> 20
MANY = CONFIG + f"instance_group [ {{ kind: KIND_CPU count: {STUBS + 1} }} ]\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SmallServer]:
    """Where this user may mount something in a namespace of their own."""
    trial = ["unshare", "--mount", "sh", "-c", SMALL, "true"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    server = SmallServer(tmp_path)
    yield server
    server.stop()


def test_shared_memory_that_is_too_small(server: SmallServer, tmp_path: Path) -> None:
    """The model loads and answers; a full batch does not fit, as was told."""
    server.serve(PICTURES)
    assert server.pictures(2) == [7.0] * 8
    with pytest.raises(grpc.RpcError, match="Failed to increase the shared memory pool size"):
        server.pictures(8)
    assert server.pictures(1) == [7.0] * 4
    told = [RULES["TC800"]]
    folder = put(tmp_path / "checked", PICTURES)
    target = CheckTarget("2.51.0", shared_memory_bytes=SHM_BYTES)
    assert len(check_repository(folder, target, rules=told).findings) == 1
    enough = replace(target, shared_memory_bytes=4 * SHM_BYTES)
    assert check_repository(folder, enough, rules=told).findings == ()


def test_stubs_without_room(server: SmallServer, tmp_path: Path) -> None:
    """The model does not load: the server says so, late, or nothing at all."""
    with pytest.raises(grpc.RpcError, match=r"No space left on device|Deadline Exceeded"):
        server.serve(python_model(MANY))
    folder = put(tmp_path / "checked", python_model(MANY))
    target = CheckTarget("2.51.0", shared_memory_bytes=SHM_BYTES)
    [finding] = check_repository(folder, target, rules=[RULES["TC802"]]).findings
    assert finding.severity == "error"

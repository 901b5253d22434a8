# SPDX-License-Identifier: Apache-2.0
"""Triton's response cache on a real server: what its key lacks, and how `serving.cache` helps.

Decision 18; the rules TC541 to TC543 are about the same.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as tritongrpc

from tests.judge import Candidate
from tests.server.plain_triton import PlainTriton
from tests.servers import ON_FREE_PORTS
from tests.unit.checks.repositories import put
from tritonctl.checks.rules import RULES
from tritonctl.engines.builds.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.metrics import scrape
from tritonctl.repository.backends import backend_named
from tritonctl.repository.publish import render
from tritonctl.runtimes.embedded.installation import install_server
from tritonctl.runtimes.lifecycle import running_server, start, stop
from tritonctl.runtimes.reload import reload

TESTS = Path(__file__).resolve().parents[1]
Answer = dict[str, list[Any]]

CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 8
input [{{ name: "x" data_type: TYPE_FP32 dims: [ {dim} ] }}]
output [
  {{ name: "y" data_type: TYPE_FP32 dims: [ {dim} ] }},
  {{ name: "z" data_type: TYPE_FP32 dims: [ {dim} ] }}
]
response_cache {{ enable: true }}
"""
CODE = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        outputs = (pb_utils.Tensor("y", x + {more}), pb_utils.Tensor("z", 2 * x))
        asked = request.requested_output_names()
        return pb_utils.InferenceResponse([one for one in outputs if one.name() in asked])
"""
LARGEST = 2**63 - 1
_INPUTS = {"asks_m": "INPUT", "reads_m": "INPUT"}  # of the rules' examples


def write(repository: Path, name: str, more: int, version: int = 1, dim: int = 3) -> None:
    """A cached model y = x + more, z = 2x, with that version alone."""
    shutil.rmtree(repository / name, ignore_errors=True)
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(CODE.format(more=more), encoding="utf-8")
    config = CONFIG.format(name=name, dim=dim)
    (folder.parent / "config.pbtxt").write_text(config, encoding="utf-8")


@pytest.fixture(scope="module")
def one_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PlainTriton, Path]]:
    """A server with a cache, and its repository."""
    repository = tmp_path_factory.mktemp("cached")
    write(repository, "again", 10)
    write(repository, "shapes", 10, dim=-1)
    write(repository, "outputs", 10)
    for rule, name in (("TC542", "asks"), ("TC543", "reads")):
        put(repository, Candidate.of(RULES[rule].bad_example, name).files)
    caches = install_server([backend_named("tokenizer")], Silent()).caches
    server = PlainTriton(
        repository,
        tmp_path_factory.mktemp("log") / "log",
        *("--model-control-mode=explicit", "--load-model=*"),
        *(f"--cache-directory={caches}", "--cache-config=local,size=1048576"),
    )
    yield server, repository
    server.stop()


@pytest.fixture
def triton(
    one_triton: tuple[PlainTriton, Path], request: pytest.FixtureRequest
) -> tuple[PlainTriton, Path]:
    """It, alive."""
    return one_triton[0].ready(request.node), one_triton[1]


def ask(url: str, name: str, x: list[list[float]], *outputs: str, **parameters: int) -> Answer:
    """What the answer holds, whatever was asked for; all outputs without names."""
    array = np.array(x, dtype=np.float32)
    given = tritongrpc.InferInput(_INPUTS.get(name, "x"), list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    wanted = [tritongrpc.InferRequestedOutput(output) for output in outputs]
    with tritongrpc.InferenceServerClient(url) as client:
        answer = client.infer(name, [given], outputs=wanted or None, parameters=parameters or None)
        return {
            output.name: answer.as_numpy(output.name).tolist()
            for output in answer.get_response().outputs
        }


@pytest.mark.server
def test_loaded_again_a_model_gives_its_old_answers(triton: tuple[PlainTriton, Path]) -> None:
    """In place, with other code: what was asked before is answered as before; also unloaded."""
    server, repository = triton
    assert ask(server.url, "again", [[1, 2, 3]])["y"] == [[11, 12, 13]]
    write(repository, "again", 20)
    server.load("again")
    assert ask(server.url, "again", [[4, 5, 6]])["y"] == [[24, 25, 26]]
    assert ask(server.url, "again", [[1, 2, 3]])["y"] == [[11, 12, 13]]
    server.unload("again")
    server.load("again")
    assert ask(server.url, "again", [[1, 2, 3]])["y"] == [[11, 12, 13]]


@pytest.mark.server
def test_another_version_has_answers_of_its_own(triton: tuple[PlainTriton, Path]) -> None:
    """Any number, also a smaller one; a version that comes back finds its own answers."""
    server, repository = triton
    for version, more in ((LARGEST, 30), (7, 40), (LARGEST, 30)):
        write(repository, "again", more, version)
        server.load("again")
        assert ask(server.url, "again", [[1, 2, 3]])["y"] == [[1 + more, 2 + more, 3 + more]]


@pytest.mark.server
def test_the_same_bytes_in_another_shape_get_the_same_answer(
    triton: tuple[PlainTriton, Path],
) -> None:
    """One request for two rows is answered with the one row of another."""
    server, _ = triton
    assert ask(server.url, "shapes", [[1, 2, 3, 4]])["y"] == [[11, 12, 13, 14]]
    assert ask(server.url, "shapes", [[1, 2], [3, 4]])["y"] == [[11, 12, 13, 14]]


@pytest.mark.server
def test_the_first_request_decides_which_outputs_there_are(
    triton: tuple[PlainTriton, Path],
) -> None:
    """Whoever asks for another one gets the first one's, and not what was asked for."""
    server, _ = triton
    assert ask(server.url, "outputs", [[1, 2, 3]], "y") == {"y": [[11, 12, 13]]}
    assert ask(server.url, "outputs", [[1, 2, 3]], "z") == {"y": [[11, 12, 13]]}
    assert ask(server.url, "outputs", [[1, 2, 3]]) == {"y": [[11, 12, 13]]}


@pytest.mark.server
def test_the_answer_of_a_model_that_is_gone(triton: tuple[PlainTriton, Path]) -> None:
    """TC542: the model that was asked doubles since; who was answered before gets the old one."""
    server, repository = triton
    row, other = [[1.0, 2.0, 3.0, 4.0]], [[5.0, 6.0, 7.0, 8.0]]
    assert ask(server.url, "asks_m", row) == {"OUTPUT": row}
    file = repository / "asks_inner" / "1" / "model.py"
    file.write_text(file.read_text().replace('"OUTPUT", tensor', '"OUTPUT", 2 * tensor'))
    server.load("asks_inner")
    assert ask(server.url, "asks_m", other) == {"OUTPUT": [[10.0, 12.0, 14.0, 16.0]]}
    assert ask(server.url, "asks_m", row) == {"OUTPUT": row}


@pytest.mark.server
def test_parameters_do_not_count(triton: tuple[PlainTriton, Path]) -> None:
    """TC543: another factor, and the answer for the first one."""
    server, _ = triton
    row = [[1.0, 2.0, 3.0, 4.0]]
    assert ask(server.url, "reads_m", row, factor=3) == {"OUTPUT": [[3.0, 6.0, 9.0, 12.0]]}
    assert ask(server.url, "reads_m", row, factor=5) == {"OUTPUT": [[3.0, 6.0, 9.0, 12.0]]}


# What follows is of a project: PLAIN is y = |x| or y = -x, MIXED has several outputs.
PLAIN, MIXED = "plain", "mixed"
X = np.array([[1.0, 2.0, 3.0]], dtype=np.float32)


@pytest.fixture
def project(onnxruntime_environment: Path, tmp_path: Path) -> Iterator[Project]:
    """Both with `serving.cache`, served."""
    script = TESTS / "onnx_graphs.py"
    subprocess.run(
        [onnxruntime_environment, script, tmp_path, "plain", "negated", "mixed"], check=True
    )
    engine = {"builder": "onnxruntime", "precision": "fp32", "max_batch_size": 8}
    serving = {"cache": True}
    models = {
        name: {"task": "tensors", "checkpoint": folder, "engine": engine, "serving": serving}
        for name, folder in ((PLAIN, "given"), (MIXED, "mixed"))
    }
    data = {"schema": "tritonctl/v1", "models": models, "server": ON_FREE_PORTS}
    (tmp_path / "tritonctl.yaml").write_text(json.dumps(data), encoding="utf-8")
    project = load_project(tmp_path)
    build(project, "plain")
    build_engine(project, MIXED, Silent())
    start(project, render(project, Silent()), Silent())
    yield project
    stop(project, Silent())


def build(project: Project, graph: str) -> None:
    """This graph becomes PLAIN's next version."""
    shutil.rmtree(project.root / "given", ignore_errors=True)
    shutil.copytree(project.root / graph, project.root / "given")
    build_engine(project, PLAIN, Silent())


@pytest.mark.engine
@pytest.mark.server
def test_a_cached_model_of_a_project(project: Project) -> None:
    """Hits; each version's own answers over reloads and back again; whatever outputs are asked."""
    state = running_server(project)
    features = np.ones((2, 16), dtype=np.float32)
    inputs = {
        "features": features,
        "ids": np.array([[1, 2], [3, 4]]),
        "name": np.array([["a"], ["b"]]),
        "sequence": np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32),
    }
    with TritonClient(state.grpc_url) as client:
        for _ in range(3):
            assert client.infer(PLAIN, {"x": X})["y"].tolist() == [[1, 2, 3]]
        assert hits(state.metrics_url, PLAIN) == 2
        for graph, sign in (("negated", -1), ("plain", 1), ("negated", -1)):
            build(project, graph)
            reload(project, PLAIN, Silent())
            for _ in range(2):
                assert client.infer(PLAIN, {"x": X})["y"].tolist() == (sign * X).tolist()
        everything = client.infer(MIXED, inputs)
        for output in ("mean", "scores", "rows", "same_name"):
            answer = client.infer(MIXED, inputs, [output])
            assert list(answer) == [output]
            np.testing.assert_array_equal(answer[output], everything[output])
        np.testing.assert_array_equal(client.infer(MIXED, inputs)["mean"], [[2], [5]])
        other = inputs | {"sequence": inputs["sequence"][:, :2]}
        np.testing.assert_array_equal(client.infer(MIXED, other)["mean"], [[1.5], [4.5]])
    assert hits(state.metrics_url, MIXED) == 5


def hits(metrics_url: str, model: str) -> float:
    """How often the cache of a model of the project answered."""
    return scrape(metrics_url).total("nv_cache_num_hits_per_model", model=f"{model}_engine")

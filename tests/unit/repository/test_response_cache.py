# SPDX-License-Identifier: Apache-2.0
"""`serving.cache`: what is planned in front of what, as which version, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtimes.test_reloading import embedded_server
from tritonctl.checks.analysis.cache_key import CachedInput, inputs_with_ambiguous_shape
from tritonctl.checks.examples.onnx import FLOAT, onnx_file
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ConfigurationError, ServerError
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Silent
from tritonctl.repository.pbtxt import parse_pbtxt, to_pbtxt
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.planned import PlannedModel
from tritonctl.repository.publish import render
from tritonctl.repository.response_cache import add_cache, with_content_versions
from tritonctl.repository.standby import retarget_ensemble, tag_models
from tritonctl.repository.steps import step_models
from tritonctl.runtimes.embedded.installation import ServerInstallation
from tritonctl.runtimes.reload import reload
from tritonctl.runtimes.server_arguments import has_response_cache, server_arguments
from tritonctl.runtimes.server_state import ServerFiles, write_state
from tritonctl.tuning.knobs import build_space

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

CHECKOUT = Path(__file__).resolve().parents[3]
MODEL, ENGINE = "speller", "speller_engine"
IMAGE = {"name": "image", "data_type": "TYPE_FP32", "dims": ["3", "8", "8"]}
SCORES = {"name": "scores", "data_type": "TYPE_FP32", "dims": ["10"]}


@pytest.mark.parametrize(
    ("dims", "batch", "confused"),
    [
        ([[3]], 8, []),
        ([[-1]], 1, []),
        ([[-1]], 0, []),
        ([[-1]], 8, ["0"]),
        ([[-1, -1]], 0, ["0"]),
        ([[-1, -1]], 1, ["0"]),
        ([[-1], [3]], 8, []),
        ([[-1, 4], [-1, 4]], 8, ["0", "1"]),
        ([[-1, -1], [3]], 8, ["0"]),
    ],
)
def test_shapes_that_bytes_tell(dims: list[list[int]], batch: int, confused: list[str]) -> None:
    """One unknown for the length of the bytes; the batch is one, unless another input tells it."""
    inputs = [CachedInput(str(number), each) for number, each in enumerate(dims)]
    assert inputs_with_ambiguous_shape(inputs, batch) == confused


def test_an_input_that_may_be_absent_tells_no_batch() -> None:
    """Then the others would be alone."""
    inputs = [CachedInput("a", [-1]), CachedInput("b", [3], optional=True)]
    assert inputs_with_ambiguous_shape(inputs, 8) == ["a"]
    assert inputs_with_ambiguous_shape([*inputs, CachedInput("c", [])], 8) == []


def tensors(side: int) -> dict[str, Any]:
    """Of an engine for images of that size; -1: of any."""
    image = {"name": "image", "data_type": "TYPE_FP32", "dims": [3, side, side]}
    scores = {"name": "scores", "data_type": "TYPE_FP32", "dims": [10]}
    return {"inputs": [image], "outputs": [scores]}


@pytest.fixture
def graph(sandbox: Sandbox) -> Sandbox:
    """A model of the task `tensors` with a cache, built; images of 8 by 8."""
    file = sandbox.root / "builders" / "scripted" / "builder.toml"
    text = file.read_text(encoding="utf-8").replace("openvino_engine", "onnxruntime_engine")
    file.write_text(text.replace('"text_generation"', '"text_generation", "tensors"'))
    sandbox.data["models"][MODEL] |= {"task": "tensors", "serving": {"cache": True}}
    content = onnx_file(
        {"image": (FLOAT, ["batch", 3, 8, 8])}, {"scores": (FLOAT, ["batch", 10])}
    ).hex()
    sandbox.behave("makes_a_graph", graph="model.onnx", content=content, tensors=tensors(8))
    build_engine(sandbox.load(), MODEL, Silent())
    return sandbox


def planned(sandbox: Sandbox) -> RepositoryPlan:
    """The plan of the project as it is now."""
    return plan_repository(sandbox.load())


def version(sandbox: Sandbox) -> str:
    """The one that all its models are."""
    [found] = {model.version for model in planned(sandbox).models}
    return found


def test_the_public_model_asks_the_one_with_the_cache(graph: Sandbox) -> None:
    """An ensemble with its tensors in front, which has no cache itself."""
    plan = planned(graph)
    engine, front = (parse_pbtxt(model.config) for model in plan.models)
    assert (engine["name"], front["name"]) == (ENGINE, MODEL)
    assert engine["response_cache"] == {"enable": True}
    assert front == {
        "name": MODEL,
        "platform": "ensemble",
        "max_batch_size": 4,
        "input": [IMAGE],
        "output": [SCORES],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": ENGINE,
                    "model_version": "-1",
                    "input_map": {"image": "image"},
                    "output_map": {"scores": "scores"},
                }
            ]
        },
    }
    assert {model.owner for model in plan.models} == {MODEL}
    assert step_models(graph.load(), MODEL) == {"engine": ENGINE}
    assert plan.needs_cache
    assert plan.needs_cache_for(MODEL)


def test_the_version_is_that_of_the_content(graph: Sandbox) -> None:
    """Of engine, settings and code; the same again for the same, whatever else has changed."""
    first = version(graph)
    assert 1 < int(first) < 2**63
    graph.data["models"][MODEL]["slo"] = {"e2e_p99_ms": 50}
    assert version(graph) == first
    graph.serving["session"] = {"intra_op_num_threads": 1}
    other = version(graph)
    del graph.serving["session"]
    graph.behave("makes_a_graph", tensors=tensors(9))
    build_engine(graph.load(), MODEL, Silent())
    assert len({first, other, version(graph)}) == 3
    graph.behave("makes_a_graph", tensors=tensors(8))
    assert version(graph) == first
    code = shutil.copytree(CHECKOUT / "python_backends", graph.root / "python_backends")
    assert version(graph) == first
    with (code / "tensorlib" / "batches.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert version(graph) != first


def test_the_rendered_folder_is_that_version(graph: Sandbox) -> None:
    """Alone; without a cache the model is version 1 again, by itself."""
    first = version(graph)
    repository = render(graph.load(), Silent()).repository
    for name in (MODEL, ENGINE):
        assert [each.name for each in repository.glob(f"{name}/*/")] == [first]
    assert (repository / ENGINE / first / "engine" / "model.onnx").is_file()
    graph.serving["cache"] = False
    rendered = render(graph.load(), Silent())
    assert not rendered.plan.needs_cache
    assert [each.name for each in repository.iterdir()] == [MODEL]
    assert (repository / MODEL / "1" / "engine" / "model.onnx").is_file()


def test_a_cache_of_raw_settings_has_a_version_too(graph: Sandbox) -> None:
    """Whoever writes response_cache into serving.config gets no stale answers, either."""
    graph.serving["cache"] = False
    graph.serving["config"] = {"engine": {"response_cache": {"enable": True}}}
    plan = planned(graph)
    [model] = plan.models
    assert model.name == MODEL
    assert int(model.version) > 1
    assert plan.needs_cache


def test_a_reload_keeps_the_new_version_s_answers_out(graph: Sandbox) -> None:
    """While it is wired to what lies beside, the model is still loaded as the old version."""
    config = {"name": "a", "response_cache": {"enable": True}, "ensemble_scheduling": {"step": []}}
    assert "response_cache" not in retarget_ensemble(config, [], "tag")
    copies = tag_models(planned(graph).models, "tag")
    assert {copy.version for copy in copies} == {version(graph)}


def test_open_shapes_are_refused(graph: Sandbox) -> None:
    """Two rows of images of any size: the bytes do not tell which."""
    graph.behave("makes_a_graph", tensors=tensors(-1))
    build_engine(graph.load(), MODEL, Silent())
    with pytest.raises(
        ConfigurationError, match=r"serving\.cache: .* image lack the shape"
    ) as caught:
        planned(graph)
    assert "fixed shapes" in caught.value.remedy


@pytest.mark.parametrize("serving", [{}, {"fused": True}, {"unary": True}])
def test_streams_are_refused(built: Sandbox, serving: dict[str, bool]) -> None:
    """An answer in parts is none that could be kept."""
    built.serving.update({"cache": True, **serving})
    with pytest.raises(ConfigurationError, match="streams its answers"):
        plan_repository(built.load())


def test_steps_that_are_not_its_own_are_refused(graph: Sandbox) -> None:
    """Sequences depend on what came before; another model's reload would not change the version."""
    config = parse_pbtxt(planned(graph).models[0].config) | {"name": MODEL}
    stateful = {key: value for key, value in config.items() if key != "dynamic_batching"}
    step = {"model_name": "other", "model_version": -1}
    nested = {
        **{key: config[key] for key in ("name", "max_batch_size", "input", "output")},
        "ensemble_scheduling": {"step": [step]},
    }
    stateful |= {"sequence_batching": {}}
    for changed, told in ((stateful, "keeps a sequence's state"), (nested, "its step other is")):
        model = PlannedModel(MODEL, MODEL, to_pbtxt(changed, header="h"), ())
        with pytest.raises(ConfigurationError, match=told):
            with_content_versions(add_cache([model], MODEL, "inner", "h"), {}, [])


def test_the_server_gets_a_cache_where_a_model_has_one(graph: Sandbox) -> None:
    """Of the project's size, in bytes."""
    graph.data["server"]["cache_size"] = "2MiB"
    project = graph.load()
    where: dict[str, Any] = {
        "repository": "/r",
        "address": "127.0.0.1",
        "ports": (1, 2, 3),
        "token": "t",
    }
    found = {
        wanted: server_arguments(project, **where, with_cache=wanted) for wanted in (True, False)
    }
    assert "--cache-config=local,size=2097152" in found[True]
    assert has_response_cache(found[True])
    assert not has_response_cache(found[False])


def test_redis_where_the_server_has_it(graph: Sandbox) -> None:
    """NVIDIA's arguments, and never a lookup without an end; refused elsewhere, but where no model
    has a cache.
    """
    graph.data["server"]["cache_redis"] = "cache.internal:6379"
    project = graph.load()
    where: dict[str, Any] = {
        "repository": "/r",
        "address": "127.0.0.1",
        "ports": (1, 2, 3),
        "token": "t",
    }
    found = server_arguments(project, **where, with_cache=True, has_redis_cache=True)
    assert [one for one in found if "cache" in one] == [
        "--cache-config=redis,host=cache.internal",
        "--cache-config=redis,port=6379",
        "--cache-config=redis,connect_timeout=500",
        "--cache-config=redis,socket_timeout=500",
    ]
    assert has_response_cache(found)
    assert not has_response_cache(server_arguments(project, **where))
    with pytest.raises(ConfigurationError, match="this server has no Redis cache") as caught:
        server_arguments(project, **where, with_cache=True)
    assert "docker.image" in caught.value.remedy


@pytest.mark.parametrize("address", ["redis", "redis:", "redis:0", "redis:x", "u:p@redis:1", ":1"])
def test_no_address_of_a_redis(sandbox: Sandbox, address: str) -> None:
    """A host and a port, and nothing secret."""
    sandbox.data["server"]["cache_redis"] = address
    with pytest.raises(ConfigurationError) as caught:
        sandbox.load()
    assert "server.cache_redis" in caught.value.problem


@pytest.mark.parametrize(
    ("size", "told"),
    [("64", "64 B is too small for a cache"), ("much", "`much` is not an amount")],
)
def test_a_size_that_is_none(sandbox: Sandbox, size: str, told: str) -> None:
    """With the field's place in the file."""
    sandbox.data["server"]["cache_size"] = size
    with pytest.raises(ConfigurationError, match=told) as caught:
        sandbox.load()
    assert "server.cache_size" in caught.value.problem


def test_the_tuner_measures_no_cache(graph: Sandbox) -> None:
    """Its hits would look like settings that are fast."""
    with pytest.raises(ConfigurationError, match="cached responses hide the effect of settings"):
        build_space(graph.load(), MODEL, 0, 2)


def test_a_running_server_without_a_cache_takes_no_model_with_one(
    graph: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded; one that was started with it goes on to the next question."""
    project = graph.load()
    files = ServerFiles.of(project)
    pid = os.getpid()
    started = process_start_time(pid) or 0
    write_state(files, embedded_server(pid, started, (1, 1, 1), [MODEL]))
    argv = ["tritonserver", f"--model-repository={files.standby}"]
    installed = ServerInstallation(Path("another"), Path("backends"), Path("caches"), {})
    monkeypatch.setattr("tritonctl.runtimes.reload.install_server", lambda *_: installed)
    for more, told in (
        ([], "speller has a response cache, but the running server was started without one"),
        (
            ["--cache-config=local,size=1048576"],
            "speller needs Python packages that the running server lacks",
        ),
    ):
        files.specification.write_text(json.dumps({"argv": [*argv, *more]}))
        with pytest.raises(ServerError, match=told):
            reload(project, MODEL, Silent())

# SPDX-License-Identifier: Apache-2.0
"""Tasks around an engine of tensors: which steps there are, and what they are wired to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ConfigurationError
from tritonctl.host.progress import Silent
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import RepositoryPlan, plan_repository
from tritonctl.repository.steps import step_models
from tritonctl.tuning.knobs import build_space
from tritonctl.tuning.space import DETOKENIZER_DELAY, FUSED, INLINE, TOKENIZERS

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

MODEL = "speller"
IDS, MASK, TYPES, POOLING = "input_ids", "attention_mask", "token_type_ids", "pooling_mask"
OUTPUTS = {
    "embedding": ("embedding", [384]),
    "classification": ("scores", [3]),
    "rerank": ("score", [1]),
    "token_classification": ("token_scores", [-1, 9]),
}
# What the engine answers with besides, and reads for it, where it does the last step's work.
LAST = {
    "embedding": ("matryoshka", {"dimensions"}, {"embedding"}),
    "classification": ("labels", {"top_k"}, {"label", "score"}),
    "token_classification": ("entities", {"offsets", "text_input"}, {"entities"}),
}


def plan(sandbox: Sandbox, task: str, *inputs: str, served_by: str = "onnxruntime_engine",
         **serving: Any) -> RepositoryPlan:  # fmt: skip
    """Of a model whose graph has these inputs."""
    file = sandbox.root / "builders" / "scripted" / "builder.toml"
    text = file.read_text(encoding="utf-8").replace("openvino_engine", served_by)
    file.write_text(text.replace('["text_generation"]', json.dumps([*OUTPUTS])), encoding="utf-8")
    output, dims = OUTPUTS[task]
    sandbox.data["models"][MODEL]["task"] = task
    sandbox.serving.update(serving)
    tensors = {
        "inputs": [{"name": name, "data_type": "TYPE_INT64", "dims": [-1]} for name in inputs],
        "outputs": [{"name": output, "data_type": "TYPE_FP32", "dims": dims}],
    }
    sandbox.behave("makes_a_graph", graph="model.onnx", tensors=tensors)
    project = sandbox.load()
    build_engine(project, MODEL, Silent())
    planned = plan_repository(project)
    assert {*step_models(project, MODEL).values(), MODEL} == {m.name for m in planned.models}
    return planned


def configs(planned: RepositoryPlan) -> dict[str, dict[str, Any]]:
    """By the step's name, the public model's as `public`."""
    names = {model.name: parse_pbtxt(model.config) for model in planned.models}
    return {name.removeprefix(f"{MODEL}_").replace(MODEL, "public"): c for name, c in names.items()}


def steps(config: dict[str, Any]) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Input and output maps by step."""
    found = config["ensemble_scheduling"]["step"]
    return {
        one["model_name"].removeprefix(f"{MODEL}_"): (one["input_map"], one["output_map"])
        for one in found
    }


def names_of(tensors: list[dict[str, Any]]) -> set[str]:
    """The tensors' names."""
    return {tensor["name"] for tensor in tensors}


@pytest.mark.parametrize("task", LAST)
def test_the_engine_takes_over_the_last_step(sandbox: Sandbox, task: str) -> None:
    """With that step's own inputs, its outputs and its files."""
    step, reads, gives = LAST[task]
    planned = plan(sandbox, task, IDS, MASK)
    found = configs(planned)
    assert found.keys() == {"tokenizer", "engine", "public"}
    engine = found["engine"]
    assert names_of(engine["input"]) == {IDS, MASK} | reads
    assert names_of(engine["output"]) == gives
    assert engine["parameters"][f"inline_{step}"] == {"string_value": "true"}
    assert engine["dynamic_batching"] == {}
    inputs, outputs = steps(found["public"])["engine"]
    assert inputs.keys() == {IDS, MASK} | reads
    assert outputs == {name: name for name in gives}
    [served] = [model for model in planned.models if model.name == f"{MODEL}_engine"]
    assert {"tasklib/labels.py", "tensorlib/packing.py"} <= {name for _, name in served.files}


def test_a_task_without_a_last_step(sandbox: Sandbox) -> None:
    """The graph's score is the answer."""
    found = configs(plan(sandbox, "rerank", IDS, MASK, TYPES))
    assert found.keys() == {"tokenizer", "engine", "public"}
    assert steps(found["public"])["engine"][1] == {"score": "score"}
    assert names_of(found["public"]["input"]) == {"query", "text_input", "truncate"}


@pytest.mark.parametrize("inputs", [(IDS, MASK), (IDS, MASK, TYPES), (IDS, MASK, POOLING)])
def test_what_the_graph_does_not_read_is_left_out(
    sandbox: Sandbox, inputs: tuple[str, ...]
) -> None:
    """Of the engine's inputs and of the tokenizer's outputs."""
    found = steps(configs(plan(sandbox, "embedding", *inputs))["public"])
    edges = {name: f"_{name}" for name in inputs}
    counts = {"num_input_tokens": "num_input_tokens", "truncated": "truncated"}
    assert found["tokenizer"][1] == edges | counts
    assert found["engine"][0] == edges | {"dimensions": "dimensions"}


def test_an_input_that_no_step_makes_is_refused(sandbox: Sandbox) -> None:
    """With the line of the task's file."""
    with pytest.raises(ConfigurationError, match=r"embedding\.yaml:\d+: step engine needs the"):
        plan(sandbox, "embedding", IDS, MASK, "position_ids")


def test_a_batch_is_as_large_as_the_engine_s(sandbox: Sandbox) -> None:
    """max_batch_size: engine."""
    found = configs(plan(sandbox, "classification", IDS, MASK))
    assert [found[name]["max_batch_size"] for name in ("public", "engine")] == [4, 4]


@pytest.mark.parametrize("task", OUTPUTS)
def test_triton_s_own_backend_has_its_last_step_beside_it(sandbox: Sandbox, task: str) -> None:
    """It joins requests of one length only: the tokenizer rounds lengths up."""
    inputs = (IDS, MASK, TYPES) if task == "rerank" else (IDS, MASK)
    planned = plan(sandbox, task, *inputs, backend="onnxruntime")
    found = configs(planned)
    last = {LAST[task][0]} if task in LAST else set()
    assert found.keys() == {"tokenizer", "engine", "public"} | last
    engine = found["engine"]
    assert engine["backend"] == "onnxruntime"
    assert engine["default_model_filename"] == "model.onnx"
    assert engine["max_batch_size"] == 4
    assert "allow_ragged_batch" not in engine["input"][0]
    assert found["tokenizer"]["parameters"]["pad_to_multiple_of"] == {"string_value": "32"}
    assert planned.native == ("onnxruntime",)
    assert {backend.name for backend in planned.backends} == {"encoder_tokenizer", *last}


def test_the_python_engine_takes_lengths_as_they_are(sandbox: Sandbox) -> None:
    """It sorts them itself."""
    found = configs(plan(sandbox, "embedding", IDS, MASK))
    assert found["tokenizer"]["parameters"]["pad_to_multiple_of"] == {"string_value": "1"}


@pytest.mark.parametrize("task", OUTPUTS)
def test_fused_is_one_model(sandbox: Sandbox, task: str) -> None:
    """The engine has the public tensors, and the packages of every step are installed."""
    inputs = (IDS, MASK, TYPES) if task == "rerank" else (IDS, MASK)
    apart = configs(plan(sandbox, task, *inputs))["public"]
    sandbox.serving["fused"] = True
    planned = plan_repository(sandbox.load())
    [config] = configs(planned).values()
    for side in ("input", "output"):
        assert names_of(config[side]) == names_of(apart[side])
    switched = {key for key in config["parameters"] if key.startswith("inline_")}
    last = {f"inline_{LAST[task][0]}"} if task in LAST else set()
    assert switched == {"inline_encoder_tokenizer"} | last
    [model] = planned.models
    assert {"encoder_tokenizer", "onnxruntime_engine"} <= {b.name for b in planned.backends}
    assert "tokenizer/tokenizer.json" in {name for _, name in model.files}


def test_triton_s_own_backend_cannot_be_the_whole_model(sandbox: Sandbox) -> None:
    """Said at once."""
    with pytest.raises(ConfigurationError, match=r"serving\.fused: Triton's own backend onnx"):
        plan(sandbox, "embedding", IDS, MASK, backend="onnxruntime", fused=True)


def test_a_bound_of_the_tokens_of_a_run(sandbox: Sandbox) -> None:
    """engine.max_num_tokens, as the builder reports it."""
    parameters = configs(plan(sandbox, "embedding", IDS, MASK))["engine"]["parameters"]
    assert parameters["max_num_tokens"] == {"string_value": "256"}


def test_the_tuner_turns_what_such_a_model_has(sandbox: Sandbox) -> None:
    """It may become one process; it has no detokenizer to delay."""
    plan(sandbox, "embedding", IDS, MASK)
    knobs = {knob.name for knob in build_space(sandbox.load(), MODEL, 0, 2).knobs}
    assert {FUSED, TOKENIZERS} <= knobs
    assert not {INLINE, DETOKENIZER_DELAY} & knobs


def test_a_step_of_the_project_s_own_in_front(sandbox: Sandbox) -> None:
    """It stays a step; the engine still takes over the last one."""
    root = sandbox.root
    own = root / "python_backends" / "clean"
    own.mkdir(parents=True)
    (own / "model.py").write_text("", encoding="utf-8")
    tensor = '\nname = "{}"\ndata_type = "TYPE_STRING"\ndims = [1]\n'
    (own / "backend.toml").write_text(
        'schema = "tritonctl.python_backend/1"\nname = "clean"\nsummary = "s"\nmax_batch_size = 8\n'
        f"[[inputs]]{tensor.format('text')}[[outputs]]{tensor.format('clean')}",
        encoding="utf-8",
    )
    shipped = Path(__file__).parents[3] / "ensembles" / "classification.yaml"
    text = shipped.read_text(encoding="utf-8").replace(
        "{text_input: text_input, text_pair", "{text_input: _clean, text_pair"
    )
    edges = "inputs: {text: text_input}\n    outputs: {clean: _clean}"
    step = f"steps:\n  clean:\n    backend: clean\n    {edges}\n"
    (root / "ensembles").mkdir()
    (root / "ensembles" / "classification.yaml").write_text(
        text.replace("steps:\n", step), encoding="utf-8"
    )
    found = configs(plan(sandbox, "classification", IDS, MASK))
    assert found.keys() == {"clean", "tokenizer", "engine", "public"}
    assert steps(found["public"])["tokenizer"][0]["text_input"] == "_clean"


def test_an_output_of_the_graph_that_others_read_is_refused(sandbox: Sandbox) -> None:
    """Here the ensemble gives the raw scores, too: Triton fails requests for one of the outputs."""
    shipped = Path(__file__).parents[3] / "ensembles" / "classification.yaml"
    text = shipped.read_text(encoding="utf-8").replace("_scores", "scores")
    raw = "outputs:\n  - {name: scores, data_type: TYPE_FP32, dims: [-1]}\n"
    (sandbox.root / "ensembles").mkdir()
    file = sandbox.root / "ensembles" / "classification.yaml"
    file.write_text(text.replace("outputs:\n", raw, 1), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="the output scores is also an input of step 3"):
        plan(sandbox, "classification", IDS, MASK)


@pytest.mark.parametrize("task", OUTPUTS)
def test_the_knobs_of_a_task(sandbox: Sandbox, task: str) -> None:
    """Each value of each knob renders; none is of a step that the task has not."""
    plan(sandbox, task, IDS, MASK, TYPES)
    space = build_space(sandbox.load(), MODEL, 0, 2)
    names = {knob.name for knob in space.knobs}
    assert {"engine.max_num_tokens", "tokenizer.instances", "fused"} <= names
    assert not [name for name in names if "detokenizer" in name or "prefix" in name]
    for knob in space.knobs:
        for value in knob.values:
            plan_repository(space.tuned_project({knob.name: value}), space.artefacts)


@pytest.mark.parametrize(
    ("serving", "cores", "runs"),
    [
        ({}, 4, ((1, 2, 4), 4)),
        ({"parallel_runs": 1}, 4, ((1, 2, 4), 1)),
        ({"parallel_runs": 8}, 4, ((1, 2, 4), 4)),
        ({"session": {"intra_op_num_threads": 1}}, 4, ((1, 2, 4), 1)),
        ({"instance_group": [{"kind": "KIND_CPU", "count": 2}]}, 4, ((1, 2), 2)),
        ({"instance_group": [{"kind": "KIND_CPU", "count": 4}]}, 4, None),
        ({"instance_group": [{"kind": "KIND_GPU", "count": 1}]}, 4, None),
    ],
)
def test_runs_at_a_time_are_a_knob(
    sandbox: Sandbox, serving: dict[str, Any], cores: int, runs: Any
) -> None:
    """Where there is a choice: no more than a core for each, of each instance, on a CPU."""
    plan(sandbox, "embedding", IDS, MASK, **serving)
    space = build_space(sandbox.load(), MODEL, 0, cores)
    found = next((knob for knob in space.knobs if knob.name == "parallel_runs"), None)
    assert (found and (found.values, found.base)) == runs
    if found is not None and found.base != 1:
        one = space.tuned_project({"parallel_runs": 1})
        engine = next(m for m in plan_repository(one, space.artefacts).models if "_eng" in m.name)
        parameters = parse_pbtxt(engine.config)["parameters"]
        assert parameters["parallel_runs"] == {"string_value": "1"}


def test_options_of_onnx_runtime_for_another_library(sandbox: Sandbox) -> None:
    """Refused, with where OpenVINO's threads are set; ONNX Runtime's engine takes them."""
    threads: dict[str, Any] = {"session": {"intra_op_num_threads": 1}}
    plan(sandbox, "embedding", IDS, MASK, **threads)
    file = sandbox.root / "builders" / "scripted" / "builder.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("onnxruntime_engine", "openvino_engine"), encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match=r"speller\.serving\.session: these are options of ONNX"
    ) as caught:
        plan(sandbox, "embedding", IDS, MASK, served_by="openvino_graph_engine", **threads)
    assert "INFERENCE_NUM_THREADS in serving.config.engine.parameters.properties" in str(
        caught.value.remedy
    )

# SPDX-License-Identifier: Apache-2.0
"""Ensemble files: every broken edge is told with its line, before Triton would refuse the graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.errors import ConfigurationError
from tritonctl.repository.backends import BackendTensor, PythonBackend
from tritonctl.repository.ensembles import (
    Ensemble,
    check_graph,
    drop_unread_inputs,
    ensemble_for,
    fold,
    lower,
)

FILE = """\
schema: tritonctl/ensemble/v1
task: t
summary: two steps
max_batch_size: 1
inputs:
  - {name: prompt, data_type: TYPE_STRING, dims: [1]}
  - {name: limit, data_type: TYPE_INT32, dims: [1], optional: true}
outputs:
  - {name: answer, data_type: TYPE_STRING, dims: [1]}
  - {name: count, data_type: TYPE_INT32, dims: [1]}
steps:
  encode:
    backend: encode
    inputs:
      text: prompt
    outputs:
      ids: _ids
  decode:
    backend: decode
    inputs:
      ids: _ids
      max: limit
    outputs:
      text: answer
      count: count
"""


def _tensor(name: str, data_type: str, dim: int, *, optional: bool = False) -> BackendTensor:
    return BackendTensor(name=name, data_type=data_type, dims=[dim], optional=optional)


def _backend(name: str, inputs: list[BackendTensor], outputs: list[BackendTensor]) -> PythonBackend:
    return PythonBackend.model_validate(
        {
            "schema": "tritonctl.python_backend/1",
            "name": name,
            "summary": "s",
            "max_batch_size": 8,
            "inputs": inputs,
            "outputs": outputs,
        }
    )


BACKENDS = {
    "encode": _backend(
        "encode", [_tensor("text", "TYPE_STRING", 1)], [_tensor("ids", "TYPE_INT32", -1)]
    ),
    "decode": _backend(
        "decode",
        [_tensor("ids", "TYPE_INT32", -1), _tensor("max", "TYPE_INT32", 1, optional=True)],
        [_tensor("text", "TYPE_STRING", 1), _tensor("count", "TYPE_INT32", 1)],
    ),
}


def _check(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "ensembles"
    folder.mkdir(exist_ok=True)
    (folder / "t.yaml").write_text(text, encoding="utf-8")
    ensemble, source = ensemble_for("t", tmp_path)
    check_graph(ensemble, BACKENDS, source)


def test_right_graph(tmp_path: Path) -> None:
    """Nothing to say."""
    _check(tmp_path, FILE)


BROKEN = [
    ("text: prompt", "txt: prompt", 15, "step encode has no input txt"),
    ("text: prompt", "text: promt", 15, "nothing writes promt, which step 1 reads"),
    ("ids: _ids\n  decode", "id: _ids\n  decode", 17, "step encode has no output id"),
    (
        "ids: _ids\n  decode",
        "ids: prompt\n  decode",
        17,
        "prompt is an input of the ensemble, and step 1 overwrites it",
    ),
    ("ids: _ids\n      max", "ids: _idz\n      max", 21, "nothing writes _idz, which step 2 reads"),
    ("ids: _ids\n      max", "max", 20, "step decode needs the input ids, which step 2"),
    (
        "ids: _ids\n      max",
        "ids: prompt\n      max",
        21,
        "prompt is TYPE_STRING in the ensemble and TYPE_INT32 in step decode",
    ),
    (
        "ids: _ids\n      max",
        "ids: limit\n      max",
        7,
        "the ensemble declares limit optional, and step decode requires it",
    ),
    ("count: count\n", "count: answer\n", 25, "step 2 already writes answer"),
    ("count: count\n", "count: other\n", 10, "no step writes the output count"),
    (
        "{name: count, data_type: TYPE_INT32",
        "{name: count, data_type: TYPE_INT64",
        25,
        "count is TYPE_INT64 in the ensemble and TYPE_INT32 in step decode",
    ),
    (
        "{name: answer, data_type: TYPE_STRING, dims: [1]}",
        "{name: answer, data_type: TYPE_STRING, dims: [1, 1]}",
        24,
        "answer is [1, 1] in the ensemble and [1] in step decode",
    ),
    (
        "{name: answer, data_type: TYPE_STRING, dims: [1]}",
        "{name: answer, data_type: TYPE_STRING, dims: [2]}",
        24,
        "answer is [2] in the ensemble and [1] in step decode",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "problem"), BROKEN)
def test_broken_edge(tmp_path: Path, old: str, new: str, line: int, problem: str) -> None:
    """Exit code 3, file and line of the edge, both ends of it."""
    assert FILE.count(old) == 1
    with pytest.raises(ConfigurationError) as caught:
        _check(tmp_path, FILE.replace(old, new))
    where, _, said = caught.value.problem.partition(": ")
    assert where == f"{tmp_path}/ensembles/t.yaml:{line}"
    assert said.startswith(problem)
    assert caught.value.exit_code == 3


def test_an_output_that_a_step_reads(tmp_path: Path) -> None:
    """Triton would drop the step, or wait for ever, when one output is requested alone."""
    shown = "outputs:\n  - {name: ids, data_type: TYPE_INT32, dims: [-1]}\n"
    text = FILE.replace("outputs:\n", shown, 1).replace("_ids", "ids")
    with pytest.raises(ConfigurationError, match=r"t\.yaml:9: the output ids is also an input"):
        _check(tmp_path, text)


def test_steps_out_of_order(tmp_path: Path) -> None:
    """A step that reads what a later one writes."""
    head, tail = FILE.split("  encode:\n")
    encode, decode = tail.split("  decode:\n")
    text = f"{head}  decode:\n{decode}  encode:\n{encode}"
    with pytest.raises(ConfigurationError, match=r"t\.yaml:15: step decode reads _ids, which"):
        _check(tmp_path, text)


def _between_steps(tmp_path: Path, written: list[int], read: list[int]) -> None:
    """Checks the graph where step encode writes `_ids` so, and step decode reads it so."""
    (tmp_path / "ensembles").mkdir()
    (tmp_path / "ensembles" / "t.yaml").write_text(FILE, encoding="utf-8")
    ensemble, source = ensemble_for("t", tmp_path)
    encode = BACKENDS["encode"]
    ids = encode.outputs[0].model_copy(update={"dims": written})
    decode = BACKENDS["decode"]
    inputs = [decode.inputs[0].model_copy(update={"dims": read}), *decode.inputs[1:]]
    backends = {
        "encode": encode.model_copy(update={"outputs": [ids]}),
        "decode": decode.model_copy(update={"inputs": inputs}),
    }
    check_graph(ensemble, backends, source)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([-1], [4]),
        ([4], [-1]),
        ([-1], [-1]),
        ([4], [4]),
        ([-1, 3], [2, 3]),
        ([-1, 3], [2, -1]),
        ([2, -1], [2, 3]),
        ([], []),
    ],
)
def test_variable_dimensions_fit_fixed_ones(
    tmp_path: Path, written: list[int], read: list[int]
) -> None:
    """-1 fits any size, whoever says it: the step that writes or the one that reads."""
    _between_steps(tmp_path, written, read)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([-1], [4, 4]),
        ([-1], [-1, -1]),
        ([-1], []),
        ([-1, 3], [-1]),
        ([4], [-1, 4]),
        ([-1, 3], [2, 4]),
        ([3, -1], [4, 2]),
        ([2, 3], [3, 2]),
    ],
)
def test_variable_dimensions_fit_no_other_rank(
    tmp_path: Path, written: list[int], read: list[int]
) -> None:
    """Nor do they excuse the sizes beside them."""
    with pytest.raises(ConfigurationError) as caught:
        _between_steps(tmp_path, written, read)
    said = f"_ids is {written} in step encode and {read} in step decode"
    assert caught.value.problem.endswith(said)


@pytest.mark.parametrize("dims", ["[-1]", "[1]"])
def test_variable_outputs_of_the_ensemble(tmp_path: Path, dims: str) -> None:
    """The ensemble itself may leave open what its last step fixes."""
    answer = "{name: answer, data_type: TYPE_STRING, dims: %s}"
    _check(tmp_path, FILE.replace(answer % "[1]", answer % dims))


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        (
            "    backend: encode\n",
            "    bakend: encode\n",
            13,
            "unknown key `bakend` in `steps.encode`",
        ),
        (
            "max_batch_size: 1",
            "max_batch_size: -1",
            4,
            "`max_batch_size`: expected at least 0, got `-1`",
        ),
        (
            "dims: [1], optional",
            "dims: x, optional",
            7,
            "`inputs.1.dims`: expected a list, got `x`",
        ),
        ("ensemble/v1", "ensemble/v2", 1, "`schema`: expected 'tritonctl/ensemble/v1'"),
    ],
)
def test_malformed_ensemble(tmp_path: Path, old: str, new: str, line: int, problem: str) -> None:
    """A mistake in the file itself has its line too."""
    assert old in FILE
    with pytest.raises(ConfigurationError) as caught:
        _check(tmp_path, FILE.replace(old, new))
    assert caught.value.problem.startswith(f"{tmp_path}/ensembles/t.yaml:{line}: {problem}")


def test_unknown_task(tmp_path: Path) -> None:
    """The tasks that exist are listed, the project's own among them."""
    _check(tmp_path, FILE)
    with pytest.raises(ConfigurationError, match="unknown task `x`") as caught:
        ensemble_for("x", tmp_path)
    listed = str(caught.value.remedy).removeprefix("tasks: ").split(", ")
    assert listed == sorted(listed)
    assert {"t", "embedding", "tensors", "text_generation"} <= {*listed}


def test_lowering(tmp_path: Path) -> None:
    """Steps become `<model>_<step>`; public tensors are the file's."""
    _check(tmp_path, FILE)
    config = lower(ensemble_for("t", tmp_path)[0], "m", 8)
    assert [step.model_name for step in config.steps] == ["m_encode", "m_decode"]
    assert config.steps[1].input_map == {"ids": "_ids", "max": "limit"}
    assert [tensor.name for tensor in config.inputs] == ["prompt", "limit"]
    assert config.inputs[1].optional
    assert config.max_batch_size == 1


def _ensemble(tmp_path: Path, text: str = FILE) -> Ensemble:
    _check(tmp_path, text)
    return ensemble_for("t", tmp_path)[0]


def _unchecked(tmp_path: Path, text: str) -> Ensemble:
    (tmp_path / "ensembles").mkdir()
    (tmp_path / "ensembles" / "t.yaml").write_text(text, encoding="utf-8")
    return ensemble_for("t", tmp_path)[0]


def test_fold(tmp_path: Path) -> None:
    """One step with the inputs of the first and the outputs of the second."""
    text = FILE.replace("      max: limit\n", "")
    ensemble = _ensemble(tmp_path, text)
    folded = fold(ensemble, "decode", "encode")
    assert list(folded.steps) == ["encode"]
    assert folded.steps["encode"].backend == "encode"
    assert folded.steps["encode"].inputs == {"text": "prompt"}
    assert folded.steps["encode"].outputs == {"text": "answer", "count": "count"}
    assert (folded.inputs, folded.outputs) == (ensemble.inputs, ensemble.outputs)
    assert list(ensemble.steps) == ["encode", "decode"]


def test_fold_of_a_step_with_other_inputs(tmp_path: Path) -> None:
    """What does not come from the step that takes over becomes an input of it."""
    folded = fold(_ensemble(tmp_path), "decode", "encode")
    assert folded.steps["encode"].inputs == {"text": "prompt", "max": "limit"}


def test_fold_of_a_step_whose_other_input_comes_later(tmp_path: Path) -> None:
    """The step that takes over runs before it."""
    between = "  limit:\n    backend: limit\n    inputs: {ids: _ids}\n    outputs: {max: _limit}\n"
    text = FILE.replace("max: limit", "max: _limit").replace("  decode:\n", f"{between}  decode:\n")
    with pytest.raises(ConfigurationError, match=r"step decode also reads \['_limit'\]"):
        fold(_unchecked(tmp_path, text), "decode", "encode")


def test_fold_of_steps_that_call_different_tensors_alike(tmp_path: Path) -> None:
    """One model has one name for a tensor."""
    text = FILE.replace("max: limit", "text: limit")
    with pytest.raises(ConfigurationError, match="both have an input text"):
        fold(_unchecked(tmp_path, text), "decode", "encode")


def test_fold_of_what_another_step_reads(tmp_path: Path) -> None:
    """The outputs of the step that takes over are gone: nobody else may need them."""
    third = "  again:\n    backend: decode\n    inputs:\n      ids: _ids\n    outputs: {}\n"
    text = FILE.replace("      max: limit\n", "") + third
    with pytest.raises(ConfigurationError, match=r"decode: again reads \['_ids'\] too"):
        fold(_unchecked(tmp_path, text), "decode", "encode")


OPTIONAL = "{name: limit, data_type: TYPE_INT32, dims: [1], optional: true"


def _fitted(tmp_path: Path, text: str) -> Ensemble:
    (tmp_path / "ensembles").mkdir()
    (tmp_path / "ensembles" / "t.yaml").write_text(text, encoding="utf-8")
    ensemble, source = ensemble_for("t", tmp_path)
    made = drop_unread_inputs(ensemble, BACKENDS)
    check_graph(made, BACKENDS, source)
    return made


def test_inputs_only_if_read_stay_where_they_are_read(tmp_path: Path) -> None:
    """The mark changes nothing for a backend that has the tensor."""
    made = _fitted(tmp_path, FILE.replace(OPTIONAL, f"{OPTIONAL}, only_if_read: true"))
    config = lower(made, "m", 8).as_dict()
    assert [tensor["name"] for tensor in config["input"]] == ["prompt", "limit"]
    steps = config["ensemble_scheduling"]["step"]
    assert steps[1]["input_map"] == {"ids": "_ids", "max": "limit"}


def test_inputs_only_if_read_go_where_nobody_reads_them(tmp_path: Path) -> None:
    """Public tensor and edge are left out; the rest is as it was."""
    text = FILE.replace(OPTIONAL, f"{OPTIONAL}, only_if_read: true")
    made = _fitted(tmp_path, text.replace("max: limit", "most: limit"))
    config = lower(made, "m", 8).as_dict()
    assert [tensor["name"] for tensor in config["input"]] == ["prompt"]
    assert config["ensemble_scheduling"]["step"][1]["input_map"] == {"ids": "_ids"}
    assert [tensor["name"] for tensor in config["output"]] == ["answer", "count"]


def test_other_unknown_inputs_are_mistakes(tmp_path: Path) -> None:
    """Without the mark a step's unknown tensor is refused as ever."""
    with pytest.raises(ConfigurationError, match="step decode has no input most"):
        _fitted(tmp_path, FILE.replace("max: limit", "most: limit"))


ENGINE = _backend(
    "engine",
    [
        _tensor("ids", "TYPE_INT32", -1),
        _tensor("runtime_top_k", "TYPE_INT32", 1, optional=True),
        _tensor("random_seed", "TYPE_UINT64", 1, optional=True),
    ],
    BACKENDS["decode"].outputs,
)
SAMPLED = FILE.replace("steps:", "sampling: decode\nsteps:").replace("      max: limit\n", "")


def _sampled(tmp_path: Path, text: str) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Public inputs with their types, and what the step `decode` reads."""
    (tmp_path / "ensembles").mkdir()
    (tmp_path / "ensembles" / "t.yaml").write_text(text, encoding="utf-8")
    made = drop_unread_inputs(ensemble_for("t", tmp_path)[0], BACKENDS | {"decode": ENGINE})
    inputs = [(tensor.name, tensor.data_type) for tensor in made.inputs]
    return inputs[2:], made.steps["decode"].inputs


def test_sampling_stands_for_the_parameters_that_the_engine_has(tmp_path: Path) -> None:
    """Under its names in the step, and their public ones in the ensemble."""
    inputs, read = _sampled(tmp_path, SAMPLED)
    assert inputs == [("top_k", "TYPE_INT32"), ("random_seed", "TYPE_UINT64")]
    assert read == {"runtime_top_k": "top_k", "random_seed": "random_seed", "ids": "_ids"}


def test_sampling_leaves_the_file_s_own_edges(tmp_path: Path) -> None:
    """A tensor that the file feeds otherwise stays so."""
    text = SAMPLED.replace(
        "      ids: _ids\n    out", "      ids: _ids\n      runtime_top_k: k\n    out"
    )
    text = text.replace(OPTIONAL, "{name: k, data_type: TYPE_INT32, dims: [1], optional: true")
    inputs, read = _sampled(tmp_path, text)
    assert read["runtime_top_k"] == "k"
    assert inputs == [("random_seed", "TYPE_UINT64")]


def test_sampling_of_a_model_has_the_public_names(tmp_path: Path) -> None:
    """A step that is another model reads what that model's clients send."""
    (tmp_path / "ensembles").mkdir()
    text = SAMPLED.replace("backend: decode", "model: decode")
    (tmp_path / "ensembles" / "t.yaml").write_text(text, encoding="utf-8")
    step = ensemble_for("t", tmp_path)[0].steps["decode"]
    assert (step.inputs["top_k"], step.inputs["seed"]) == ("top_k", "seed")


def test_sampling_of_no_step(tmp_path: Path) -> None:
    """A misspelt step is named."""
    (tmp_path / "ensembles").mkdir()
    text = SAMPLED.replace("sampling: decode", "sampling: decoder")
    (tmp_path / "ensembles" / "t.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="`sampling` is decoder, expected the name of"):
        ensemble_for("t", tmp_path)

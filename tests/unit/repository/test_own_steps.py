# SPDX-License-Identifier: Apache-2.0
"""Graphs of a project's own: tasks, ensembles without an engine, models as steps, mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.engine import build_engine
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.errors import ConfigurationError, RepositoryError, UsageError
from tritonctl.host.progress import Silent
from tritonctl.repository.choice import select_models
from tritonctl.repository.interfaces import planning_order
from tritonctl.repository.new_step import write_step
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.publish import render
from tritonctl.repository.steps import step_models

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

STEP = "tidy"
GRAPH = """\
schema: tritonctl/ensemble/v1
task: guarded
summary: tidied, then spelled
max_batch_size: 1
inputs:
  - {name: text_input, data_type: TYPE_STRING, dims: [1]}
  - {name: max_tokens, data_type: TYPE_INT32, dims: [1], optional: true}
outputs:
  - {name: text_output, data_type: TYPE_STRING, dims: [-1]}
steps:
  tidy:
    backend: tidy
    inputs: {text: text_input}
    outputs: {tidied: _tidied}
  answer:
    model: speller
    inputs: {text_input: _tidied, max_tokens: max_tokens}
    outputs: {text_output: text_output}
"""

TIDY = "{backend: tidy, inputs: {text: text_input}, outputs: {tidied: _tidied}}"
INNER = "{model: guarded, inputs: {text_input: text_input}, outputs: {text_output: _tidied}}"
TWICE = f"""\
schema: tritonctl/ensemble/v1
task: twice
engine_task: text_generation
summary: asks itself what another model says
max_batch_size: 1
inputs:
  - {{name: text_input, data_type: TYPE_STRING, dims: [1]}}
outputs:
  - {{name: token_chunk, data_type: TYPE_INT32, dims: [-1]}}
steps:
  tidy: {TIDY}
  tokenizer:
    backend: tokenizer
    inputs: {{text_input: _tidied}}
    outputs: {{input_ids: _ids, input_lengths: _lengths}}
  engine:
    backend: engine
    inputs: {{input_ids: _ids, input_lengths: _lengths}}
    outputs: {{token_chunk: token_chunk}}
"""


def put(root: Path, text: str = GRAPH, name: str = "guarded") -> Path:
    """Write an ensemble of the project's."""
    file = root / "ensembles" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def own(built: Sandbox) -> Sandbox:
    """A project with a step and an ensemble of its own in front of its model."""
    write_step(built.root, STEP)
    put(built.root)
    built.data["ensembles"] = {"guarded": {}}
    return built


def configs(own: Sandbox) -> Mapping[str, dict[str, Any]]:
    """What would be served."""
    return {model.name: parse_pbtxt(model.config) for model in plan_repository(own.load()).models}


def refused(own: Sandbox) -> ConfigurationError:
    """What planning says."""
    with pytest.raises(ConfigurationError) as caught:
        plan_repository(own.load())
    return caught.value


def test_a_model_as_a_step(own: Sandbox) -> None:
    """Its own step is `guarded_tidy`; the model stays what it is, and is served once."""
    served = configs(own)
    assert [name for name in served if name.startswith("guarded")] == ["guarded_tidy", "guarded"]
    assert list(served).index("speller") < list(served).index("guarded")
    steps = served["guarded"]["ensemble_scheduling"]["step"]
    assert [step["model_name"] for step in steps] == ["guarded_tidy", "speller"]
    tidy = served["guarded_tidy"]
    assert tidy["parameters"] == {"longest": {"string_value": "2000"}}
    assert (tidy["max_batch_size"], tidy["dynamic_batching"]) == (64, {})
    project = own.load()
    assert step_models(project, "guarded") == {"tidy": "guarded_tidy"}
    assert set(plan_repository(project).owners.values()) == {"speller", "guarded"}


def test_it_renders_and_is_checked(own: Sandbox) -> None:
    """As Triton would load it; again changes nothing, without it its folders go."""
    assert {"guarded", "guarded_tidy"} <= set(render(own.load(), Silent()).changed)
    assert not render(own.load(), Silent()).changed
    del own.data["ensembles"]
    assert set(render(own.load(), Silent()).removed) == {"guarded", "guarded_tidy"}


def test_settings_of_one_deployment(own: Sandbox) -> None:
    """serving.config by step, the ensemble's own under `ensemble`; an unknown step is refused."""
    longest = {"parameters": {"longest": {"string_value": "9"}}}
    serving = own.data["ensembles"]["guarded"].setdefault("serving", {})
    serving["config"] = {"tidy": longest, "ensemble": {"version_policy": {"latest": {}}}}
    serving["dynamic_batching"] = {"max_queue_delay_microseconds": 300}
    served = configs(own)
    assert served["guarded_tidy"]["parameters"] == longest["parameters"]
    assert served["guarded_tidy"]["dynamic_batching"]["max_queue_delay_microseconds"] == "300"
    assert "version_policy" in served["guarded"]
    serving["config"] = {"tdy": longest}
    error = refused(own)
    assert error.problem == "ensembles.guarded.serving.config: unknown step `tdy`"
    assert error.remedy == "did you mean `tidy`? steps: tidy, ensemble"


def test_an_ensemble_in_an_ensemble(own: Sandbox) -> None:
    """Each comes after what it is made of, whatever their names; circles are refused."""
    outer = GRAPH.replace("task: guarded", "task: a").replace("model: speller", "model: guarded")
    put(own.root, outer, "a")
    own.data["ensembles"]["a"] = {}
    project = own.load()
    assert planning_order(project) == ["speller", "guarded", "a"]
    [*_, last] = plan_repository(project).models
    assert last.name == "a"
    render(project, Silent())
    assert sorted(select_models(project, ["a"]).public) == ["a", "guarded", "speller"]
    assert select_models(project, ["speller"]).public == ["speller"]
    with pytest.raises(UsageError, match="model `b`"):
        select_models(project, ["b"])
    put(own.root, GRAPH.replace("model: speller", "model: a"))
    assert "models that are steps of each other: " in refused(own).problem


def test_a_model_with_an_engine_around_another(own: Sandbox) -> None:
    """A second engine in one graph: its own, and behind it a model of the project."""
    own.data["models"]["twice"] = own.model() | {"task": "twice"}
    put(own.root, TWICE, "twice")
    [stage] = plan_stages(own.load(), "twice")
    assert (stage.builder.name, stage.request.task) == ("scripted", None)
    with pytest.raises(RepositoryError, match="twice has no engine"):
        plan_repository(own.load())
    build_engine(own.load(), "twice", Silent())
    served = configs(own)
    assert [name for name in served if name.startswith("twice")] == [
        "twice_tidy",
        "twice_tokenizer",
        "twice_engine",
        "twice",
    ]
    put(own.root, TWICE.replace(TIDY, INNER), "twice")
    served = configs(own)
    steps = served["twice"]["ensemble_scheduling"]["step"]
    assert [step["model_name"] for step in steps] == ["guarded", "twice_tokenizer", "twice_engine"]
    own.data["models"]["twice"]["serving"] = {"fused": True}
    error = refused(own)
    assert error.problem == (
        "models.twice.serving.fused: its step guarded is a public model and cannot be fused"
    )


def test_a_task_without_an_engine_of_its_own(own: Sandbox) -> None:
    """The builder does not know it: the key that says whose engine it takes is named."""
    own.data["models"]["speller"]["task"] = "guarded"
    del own.data["ensembles"]
    with pytest.raises(ConfigurationError) as caught:
        plan_stages(own.load(), "speller")
    file = own.root / "ensembles" / "guarded.yaml"
    assert f"{file}: builder scripted makes no engine for a task `guarded`" in caught.value.problem
    assert "`engine_task: text_generation`" in str(caught.value.remedy)


MISTAKES = [
    ("model: speller", "model: spelller", 16, "the project has no model `spelller`", "speller"),
    ("backend: tidy", "backend: tidi", 12, "unknown backend `tidi`", "tritonctl new step tidi"),
    ("{text: text_input}", "{txt: text_input}", 13, "step tidy has no input txt", "text"),
    ("    model: speller\n", "", 15, "a step has either a `backend` or a `model`", ""),
    (
        "{text_input: _tidied,",
        "{messages: max_tokens, text_input: _tidied,",
        17,
        "max_tokens is TYPE_INT32 in the ensemble and TYPE_STRING in step answer",
        "converts",
    ),
    (
        "{text_output: text_output}",
        "{text_output: text_output, texts: _x}",
        18,
        "step answer has no output texts",
        "text_output",
    ),
    ("  tidy:\n", "  ../tidy:\n", 11, "text that matches", ""),
    ("  answer:\n    model: speller", "  answer:\n    backend: engine", 15, "step answer has", ""),
    (
        "  answer:\n    model: speller",
        "  engine:\n    backend: engine",
        15,
        "needs an engine, which entries of `ensembles:` do not have",
        "under `models:`",
    ),
    (
        "  answer:\n    model: speller",
        "  answer:\n    backend: tokenizer",
        16,
        "the backend tokenizer needs the parameter",
        "under `models:`",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "problem", "remedy"), MISTAKES)
def test_mistakes_in_a_graph(
    own: Sandbox, old: str, new: str, line: int, problem: str, remedy: str
) -> None:
    """Each with file and line, before anything is rendered."""
    assert GRAPH.count(old) == 1
    file = put(own.root, GRAPH.replace(old, new))
    error = refused(own)
    assert f"{file}:{line}" in error.problem
    assert problem in error.problem
    assert remedy in str(error.remedy)


def test_names_are_public_once(own: Sandbox) -> None:
    """A model and an ensemble cannot share one."""
    own.data["ensembles"]["speller"] = {"task": "guarded"}
    with pytest.raises(ConfigurationError, match="`speller` is the name of a model and of an ens"):
        own.load()


def test_what_lies_in_a_step_goes_along(own: Sandbox) -> None:
    """Modules and data beside model.py, in folders too; as copies, which may be edited."""
    folder = own.root / "python_backends" / STEP
    (folder / "words").mkdir()
    (folder / "words" / "english.txt").write_text("one\n", encoding="utf-8")
    (folder / "spelling.py").write_text("ONE = 1\n", encoding="utf-8")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"")
    render(own.load(), Silent())
    version = own.root / "model_repository" / "guarded_tidy" / "1"
    files = sorted(p.relative_to(version).as_posix() for p in version.rglob("*") if p.is_file())
    assert files == ["model.py", "spelling.py", "words/english.txt"]
    assert not (version / "words" / "english.txt").samefile(folder / "words" / "english.txt")


def test_a_step_without_code(own: Sandbox) -> None:
    """Named, with what belongs there."""
    (own.root / "python_backends" / STEP / "model.py").unlink()
    assert refused(own).problem.startswith(f"{own.root}/python_backends/tidy/model.py is missing")


def test_code_that_is_no_python(own: Sandbox) -> None:
    """Told of the file that is edited, not of its copy."""
    file = own.root / "python_backends" / STEP / "model.py"
    file.write_text(file.read_text(encoding="utf-8") + "def (:\n", encoding="utf-8")
    with pytest.raises(RepositoryError) as caught:
        render(own.load(), Silent())
    line = len(file.read_text(encoding="utf-8").splitlines())
    assert caught.value.problem.startswith(f"{file}:{line}:")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'Tensor("tidied"',
            'Tensor("tidy"',
            "the output tidy is not declared, so no client receives it",
        ),
        ('(request, "text")', '(request, "txt")', "the input txt is not declared"),
    ],
)
def test_code_with_another_tensor(own: Sandbox, cli: Cli, old: str, new: str, said: str) -> None:
    """Against what backend.toml declares, with file and line, when it is rendered."""
    own.write()
    file = own.root / "python_backends" / STEP / "model.py"
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    line = text[: text.index(old)].count("\n") + 1
    told = cli("render").stderr.replace("\n", " ")
    assert f"{file}:{line}:" in told
    assert said in told


@pytest.mark.parametrize("shared", ["../../outside", "nowhere", "textlib/x"])
def test_shares_stay_inside(own: Sandbox, shared: str) -> None:
    """What is shared is a folder beside the step's, and lands beside its model.py."""
    (own.root.parent / "outside").mkdir(exist_ok=True)
    file = own.root / "python_backends" / STEP / "backend.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(f'shares = ["{shared}"]\n{text}', encoding="utf-8")
    error = refused(own)
    assert error.problem == (f"{file}:1: `shares` names {shared}, not a folder of python_backends/")


def test_requirements_that_contradict_ours(own: Sandbox) -> None:
    """Both files, both lines."""
    file = own.root / "python_backends" / STEP / "requirements.txt"
    file.write_text("# mine\nnumpy==1.26.4\ntokenizers==0.20.0\n", encoding="utf-8")
    error = refused(own)
    assert f"{file}:3 tokenizers==0.20.0: all models of a server" in error.problem
    assert "/detokenizer/requirements.txt:3 requires tokenizers==" in error.problem


def test_logs_know_an_ensemble(own: Sandbox, cli: Cli) -> None:
    """As any model of the project."""
    own.write()
    assert "no server log yet" in cli("logs", "guarded").stderr
    assert "did you mean `guarded`?" in cli("logs", "garded").stderr

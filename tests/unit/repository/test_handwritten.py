# SPDX-License-Identifier: Apache-2.0
"""Models that users wrote into the repository themselves: kept, served, chosen, provided for."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.handwritten import write_ensemble
from tests.unit.runtimes.test_reloading import ANSWER, embedded_server
from tritonctl.errors import (
    ConfigurationError,
    RepositoryError,
    ServerError,
    SettingsRefusedError,
    UsageError,
)
from tritonctl.host.progress import Silent
from tritonctl.repository.backends import backend_named
from tritonctl.repository.choice import select_models
from tritonctl.repository.contents import HandwrittenModel, handwritten
from tritonctl.repository.packages import image_requirements, refuse_conflicts
from tritonctl.repository.plan import plan_repository, startup_models
from tritonctl.repository.publish import render
from tritonctl.repository.server_environment import server_recipe
from tritonctl.runtimes import reload_handwritten as reloading
from tritonctl.runtimes.docker.container_limits import repository_configs
from tritonctl.runtimes.lifecycle import start
from tritonctl.runtimes.server_state import ServerFiles

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

CONFIG = """name: "{name}"
backend: "python"
input [{{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }}]
"""
STEPS = ["speller_detokenizer", "speller_engine", "speller_tokenizer"]


def write(sandbox: Sandbox, name: str = "mine", requirements: str | None = None) -> Path:
    """A model by hand."""
    folder = sandbox.root / "model_repository" / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG.format(name=name), encoding="utf-8")
    (folder / "1" / "model.py").write_text("", encoding="utf-8")
    if requirements is not None:
        (folder / "1" / "requirements.txt").write_text(requirements, encoding="utf-8")
    return folder


def test_it_is_kept_and_served(built: Sandbox) -> None:
    """Before and after it is seen by a rendering; a copy of a model of ours is the user's."""
    write(built)
    project = built.load()
    render(project, Silent())
    shutil.copytree(project.repository / "speller_engine", project.repository / "copy")
    rendered = render(project, Silent())
    assert rendered.removed == ()
    assert [model.name for model in rendered.plan.handwritten] == ["copy", "mine"]
    assert rendered.plan.model_names == ["copy", "mine", "speller", *STEPS]
    assert startup_models(project, rendered.plan) == ["*"]


@pytest.mark.parametrize("name", ["notes", ".git"])
def test_a_folder_that_is_no_model(built: Sandbox, name: str) -> None:
    """Triton would not start over it: the models are named."""
    write(built)
    (built.root / "model_repository" / name / "1").mkdir(parents=True)
    project = built.load()
    plan = render(project, Silent()).plan
    assert startup_models(project, plan) == ["mine", "speller", *STEPS]


def test_a_choice_leaves_the_rest_alone(built: Sandbox) -> None:
    """What is not chosen stays, needs no engine, and is removed once the project drops it."""
    write(built)
    write(built, "yours")
    render(built.load(), Silent())
    built.data["models"]["unbuilt"] = built.model() | {"checkpoint": "nowhere"}
    project = select_models(built.load(), ["speller", "mine"])
    rendered = render(project, Silent())
    assert rendered.plan.model_names == ["mine", "speller", *STEPS]
    assert startup_models(project, rendered.plan) == rendered.plan.model_names
    by_hand = select_models(built.load(), ["yours"])
    rendered = render(by_hand, Silent())
    assert (rendered.plan.model_names, rendered.removed) == (["yours"], ())
    del built.data["models"]["unbuilt"]
    assert set(render(built.load(), Silent()).unchanged) == {"speller", *STEPS}
    built.data["models"] = {"mine2": built.model()}
    with pytest.raises(UsageError, match="model `spelller`") as caught:
        select_models(built.load(), ["spelller"])
    assert "its models: mine2, mine, yours" in caught.value.remedy


def test_an_ensemble_is_chosen_with_its_steps(built: Sandbox) -> None:
    """Those by hand, whose packages it needs; also of an ensemble in it."""
    write(built)
    repository = built.root / "model_repository"
    write_ensemble(repository, "inner", "mine")
    write_ensemble(repository, "outer", "inner")
    project = select_models(built.load(), ["outer"])
    assert plan_repository(project).model_names == ["inner", "mine", "outer"]


def test_the_command_chooses(built: Sandbox, cli: Cli) -> None:
    """Names in one word; a wrong one is a usage error, with the nearest."""
    write(built)
    built.write()
    assert cli("render", "--models", "speller, mine").returncode == 0
    for words in (["render", "--models", "speler"], ["up", "--models", "speler"]):
        done = cli(*words)
        assert done.returncode == 2
        assert "did you mean `speller`?" in done.stderr
    deployed = cli("deploy", "compose", "--models", "mine", "--json")
    assert deployed.returncode == 0, deployed.stderr
    files = built.root / "deploy" / "triton" / "requirements.txt"
    assert files.read_text(encoding="utf-8") == "numpy==1.26.4\n"
    alone = cli("render", "--models", "mine")
    assert (alone.returncode, "TC0" in alone.stderr) == (0, False)
    assert "names no model" in cli("render", "--models", ",").stderr


def program(folder: Path, text: str) -> HandwrittenModel:
    """A model with these requirements."""
    folder.mkdir(exist_ok=True)
    (folder / "requirements.txt").write_text(text, encoding="utf-8")
    return HandwrittenModel(folder.name, folder)


def test_requirements_become_part_of_the_server_s_environment(built: Sandbox) -> None:
    """Beside model.py or config.pbtxt; what our backends pin already adds nothing."""
    folder = write(built, requirements="tokenizers==0.23.3\n")
    tokenizer = backend_named("tokenizer")
    mine = HandwrittenModel("mine", folder)
    whole = server_recipe([tokenizer]).fingerprint()
    assert server_recipe([tokenizer, mine]).fingerprint() == whole
    (folder / "requirements.txt").write_text("wcwidth==0.2.13\n", encoding="utf-8")
    assert [file.parent.name for file in mine.requirements] == ["mine", "1"]
    assert server_recipe([tokenizer, mine]).fingerprint() != whole
    assert mine in plan_repository(built.load()).programs


def test_a_stub_gets_numpy(tmp_path: Path) -> None:
    """Hand-written models alone need not name what Triton's stub itself imports."""
    text = image_requirements([program(tmp_path / "mine", "wcwidth\n")], built=True)
    assert [line.split("=")[0] for line in text.splitlines()] == ["numpy", "wcwidth"]


def test_a_backend_without_requirements(built: Sandbox) -> None:
    """Of the project: it imports what is there anyway."""
    folder = built.root / "python_backends" / "tokenizer"
    shutil.copytree(backend_named("tokenizer").folder, folder)
    (folder / "requirements.txt").unlink()
    assert backend_named("tokenizer", built.root).requirements == ()
    assert plan_repository(built.load()).model_names == ["speller", *STEPS]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("numpy==1.26.4", "numpy==2.0.0"),
        ("numpy>=2", "NumPy==1.26.4"),
        ("a_b==1", "a-b!=1"),
    ],
)
def test_requirements_that_contradict_each_other(tmp_path: Path, one: str, other: str) -> None:
    """Both files are named, before pip is asked."""
    programs = [program(tmp_path / "one", one), program(tmp_path / "two", other)]
    with pytest.raises(ConfigurationError, match="all models of a server share") as caught:
        refuse_conflicts(programs)
    for part in (one, other, str(tmp_path / "one"), str(tmp_path / "two")):
        assert part in caught.value.problem


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("numpy==1.26.4", "numpy<2"),
        ("numpy", "numpy"),
        ("numpy==1.26.4", "numpy==1.26.4 --hash=sha256:00"),
        (f"a==1; python_version > '{sys.version_info[0]}.0'", "a==2; python_version < '3.0'"),
        ("--extra-index-url https://example.org/simple", "./wheels/a-1-py3-none-any.whl"),
        ("-r more.txt", "# nothing"),
        (f"a==1 {' '.join(f'--hash=sha256:{n:064}' for n in range(9))}", "a"),
    ],
)
def test_requirements_that_go_together(tmp_path: Path, one: str, other: str) -> None:
    """pip finds out the rest."""
    refuse_conflicts([program(tmp_path / "one", one), program(tmp_path / "two", other)])


@pytest.mark.parametrize("line", ["nump y==1", "numpy=1.26"])
def test_a_line_that_is_no_requirement(built: Sandbox, cli: Cli, line: str) -> None:
    """Before anything is installed or rendered."""
    folder = write(built, requirements=f"{line}\n")
    built.write()
    done = cli("render")
    assert done.returncode == 3
    assert f"`{line}` is not a requirement" in done.stderr
    assert str(folder / "1" / "requirements.txt") in done.stderr.replace("\n", "")
    assert sorted(path.name for path in folder.parent.iterdir()) == ["mine"]


def test_a_file_that_includes_itself(tmp_path: Path) -> None:
    """Once round is enough."""
    with pytest.raises(ConfigurationError, match=r"requirements\.txt includes itself"):
        refuse_conflicts([program(tmp_path / "mine", "-r requirements.txt\n")])


@pytest.mark.parametrize("line", ["./a-1-py3-none-any.whl", "--extra-index-url https://a.example"])
def test_what_an_image_cannot_install(tmp_path: Path, line: str) -> None:
    """It has no files of this machine; a user's own image has whatever it has."""
    programs = [program(tmp_path / "mine", f"wcwidth==0.2.13\n{line}\n")]
    with pytest.raises(ConfigurationError, match=r"cannot be installed in an image") as caught:
        image_requirements(programs, built=True)
    assert line in caught.value.problem
    assert image_requirements(programs, built=False) == "numpy==1.26.4\nwcwidth==0.2.13\n"


class Control:
    """In the place of model control: what was done, in order."""

    def __init__(self, configs: Mapping[str, Any], refused: str = "") -> None:
        self.configs, self.refused = configs, refused
        self.done: list[str] = []

    def ready(self, model: str) -> bool:
        """Whether it is served."""
        return model in self.configs

    def config(self, model: str) -> Mapping[str, Any]:
        """What is served now."""
        found: Mapping[str, Any] = self.configs[model]
        return found

    def versions(self, model: str) -> set[str]:
        """Those that the server has had."""
        assert model == "mine"
        return {"1", "5"}

    def load(self, model: str) -> None:
        """From a repository."""
        self.done.append(f"load {model.partition('__')[0]}{'*' * ('__' in model)}")
        if self.refused and self.refused in self.done[-1]:
            raise SettingsRefusedError("no", remedy="none")

    def wait_until_ready(self, models: object) -> None:
        """At once."""

    def unload(self, model: str, seconds: float) -> bool:
        """At once."""
        assert seconds == 10
        self.done.append(f"unload {model.partition('__')[0]}*")
        return True


def reload(sandbox: Sandbox, control: Any) -> object:
    """A reload of `mine`, which lies in the repository."""
    project = sandbox.load()
    (model,) = handwritten(project, project.models)
    state = embedded_server(1, 1, (1, 2, 3), ["mine", "all"])
    return reloading.reload_handwritten(project, model, state, control, Silent(), smoke_test=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that got a smoke request."""
    names: list[str] = []

    def smoke(_: object, served_as: str, *__: object) -> object:
        names.append(served_as.partition("__")[0])
        return ANSWER

    monkeypatch.setattr(reloading, "smoke_tensors", smoke)
    return names


def test_a_reload(built: Sandbox, asked: list[str]) -> None:
    """A copy is asked first; nothing of it stays, nor of an earlier one that was killed."""
    write(built)
    (built.root / ".tritonctl" / "server" / "beside" / "mine__0ld000").mkdir(parents=True)
    control = Control({"mine": {}})
    assert reload(built, control) == ANSWER
    assert control.done == ["unload mine*", "load mine*", "unload mine*", "load mine"]
    assert asked == ["mine"]
    assert list((built.root / ".tritonctl" / "server" / "beside").iterdir()) == []


def test_a_cached_version_is_not_served_twice(built: Sandbox, asked: list[str]) -> None:
    """The cache would answer for the old one; under a number of its own it cannot."""
    folder = write(built)
    with (folder / "config.pbtxt").open("a", encoding="utf-8") as file:
        file.write("response_cache { enable: true }\n")
    control = Control({"mine": {}})
    with pytest.raises(ServerError, match="its version 1 was already deployed") as caught:
        reload(built, control)
    assert f"mv {folder}/1 {folder}/6" in caught.value.remedy
    assert control.done == asked == []
    (folder / "1").rename(folder / "6")
    assert reload(built, control) == ANSWER


def test_a_model_that_streams_is_not_asked(built: Sandbox, asked: list[str]) -> None:
    """Loaded is enough."""
    with (write(built) / "config.pbtxt").open("a", encoding="utf-8") as file:
        file.write("model_transaction_policy { decoupled: true }\n")
    assert reload(built, Control({})) is None
    assert asked == []


def test_a_reload_that_does_not_load(built: Sandbox, asked: list[str]) -> None:
    """What is served is not touched."""
    write(built)
    control = Control({}, refused="mine*")
    with pytest.raises(SettingsRefusedError):
        reload(built, control)
    assert control.done == ["load mine*", "unload mine*"]
    assert asked == []


@pytest.mark.parametrize("content", [b"name: [", b'name: "\xff"'])
def test_a_config_that_cannot_be_read(built: Sandbox, asked: list[str], content: bytes) -> None:
    """Named with its file, by `reload` and for containers; `render` leaves it alone."""
    file = write(built) / "config.pbtxt"
    file.write_bytes(content)
    assert render(built.load(), Silent()).plan.model_names[0] == "mine"
    control = Control({"mine": {}})
    reading: list[Callable[[], object]] = [
        lambda: reload(built, control),
        lambda: repository_configs(file.parents[1], ["mine"]),
    ]
    for fails in reading:
        with pytest.raises(ConfigurationError, match=r"mine/config\.pbtxt cannot be read"):
            fails()
    assert control.done == asked == []


def test_steps_of_ensembles_are_not_reloaded(built: Sandbox) -> None:
    """Triton might crash: stop and start."""
    write(built)
    control = Control({"all": {"ensemble_scheduling": {"step": [{"model_name": "mine"}]}}})
    with pytest.raises(ServerError, match="is a step of all") as caught:
        reload(built, control)
    assert "tritonctl down" in caught.value.remedy
    assert control.done == []


def test_a_name_that_ends_the_server(built: Sandbox) -> None:
    """Told before anything is started."""
    write(built, "a b")
    project = built.load()
    rendered = render(project, Silent())
    with pytest.raises(
        RepositoryError, match="a b: tritonserver crashes on this model name"
    ) as caught:
        start(project, rendered, Silent())
    assert "rename the folder" in caught.value.remedy
    assert not ServerFiles.of(project).state.exists()


def test_a_backend_that_the_embedded_server_lacks(built: Sandbox) -> None:
    """Said before anything is started, with the ways out."""
    folder = built.root / "model_repository" / "sums"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(b"")
    (folder / "config.pbtxt").write_text('name: "sums"\n', encoding="utf-8")
    project = built.load()
    rendered = render(project, Silent())
    problem = "sums needs the backend onnxruntime, and the embedded server has only"
    with pytest.raises(ServerError, match=problem) as caught:
        start(project, rendered, Silent())
    assert "`--mode docker`" in caught.value.remedy
    assert not ServerFiles.of(project).state.exists()

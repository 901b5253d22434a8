# SPDX-License-Identifier: Apache-2.0
"""`tritonctl new`: what it writes is planned, checked and tested as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tritonctl.host.progress import Silent
from tritonctl.repository.publish import render

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

EXAMPLES = ("digit-reader", "number-finder", "number-speller")
COMMENT = "# what the shop sells\n"


def own_tests(root: Path) -> str:
    """What plain pytest says of a project's own tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_ensemble_and_its_step(built: Sandbox, cli: Cli) -> None:
    """One command; then render, check and the tests that it wrote pass."""
    built.write()
    text = built.file.read_text(encoding="utf-8")
    built.file.write_text(COMMENT + text, encoding="utf-8")
    done = cli("new", "ensemble", "guarded")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.splitlines() == [
        "wrote python_backends/guarded_step/backend.toml",
        "wrote python_backends/guarded_step/model.py",
        "wrote python_backends/guarded_step/requirements.txt",
        "wrote tests/test_guarded_step.py",
        "wrote tests/triton_python_backend_utils.py",
        "wrote ensembles/guarded.yaml",
        "wrote tests/test_guarded_graph.py",
        "wrote tritonctl.yaml",
        "next:",
        "  pytest tests",
        "  tritonctl build",
        "  tritonctl up",
        '  tritonctl generate guarded "a prompt"',
    ]
    after = built.file.read_text(encoding="utf-8")
    assert after.startswith(COMMENT)
    assert yaml.safe_load(after) == built.data | {"ensembles": {"guarded": {}}}
    rendered = cli("render")
    assert rendered.returncode == 0, rendered.stderr
    assert "rendered   guarded_step\n" in rendered.stdout
    assert cli("check").returncode == 0
    assert "5 passed" in own_tests(built.root)


def test_a_step_then_its_ensemble(built: Sandbox, cli: Cli) -> None:
    """The step says how it is wired, and that command takes it as it is."""
    built.write()
    first = json.loads(cli("new", "step", "tidy", "--json").stdout)
    assert first["written"][0] == "python_backends/tidy/backend.toml"
    assert first["next"] == [
        "pytest tests",
        "tritonctl new ensemble my_tidy --step tidy --model speller",
    ]
    assert "3 passed" in own_tests(built.root)
    code = built.root / "python_backends" / "tidy" / "model.py"
    code.write_text(code.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    done = cli(*first["next"][1].split()[1:], "--json")
    assert json.loads(done.stdout)["written"] == [
        "ensembles/my_tidy.yaml",
        "tests/test_my_tidy_graph.py",
        "tritonctl.yaml",
    ]
    assert code.read_text(encoding="utf-8").endswith("# mine\n")
    # A second ensemble ends in the first: the step is in it twice.
    done = cli("new", "ensemble", "outer", "--step", "tidy", "--model", "my_tidy")
    assert done.returncode == 0, done.stderr
    assert cli("render").returncode == 0
    assert cli("check").returncode == 0


def test_sampling_goes_through(built: Sandbox, cli: Cli) -> None:
    """What the engine reads is offered again; what stands in place of the text is not."""
    built.write()
    cli("new", "ensemble", "guarded")
    graph = yaml.safe_load((built.root / "ensembles" / "guarded.yaml").read_text("utf-8"))
    offered = {tensor["name"]: tensor.get("optional", False) for tensor in graph["inputs"]}
    assert offered["text_input"] is False
    assert {"max_tokens", "stop_words"} <= offered.keys()
    assert graph["sampling"] == "speller"
    assert {"messages", "lora_name", "beam_width"}.isdisjoint(offered)
    assert graph["steps"]["speller"]["inputs"]["text_input"] == "_tidied"
    assert cli("render").returncode == 0
    config = (built.root / "model_repository" / "guarded" / "config.pbtxt").read_text("utf-8")
    for name in ("temperature", "top_k", "seed", "random_seed"):
        assert f'key: "{name}"\n      value: "{name}"' in config


REFUSED = [
    ("step", "7days", "cannot be the name of a step"),
    ("step", "a-b", "cannot be the name of a step"),
    ("step", "../up", "cannot be the name of a step"),
    ("step", "engine", "`engine` and `ensemble` are reserved"),
    ("step", "tokenizer", "tritonctl ships python_backends/tokenizer"),
    ("step", "mine", "python_backends/mine already exists"),
    ("ensemble", "a b", "cannot be a Triton model's name"),
    ("ensemble", "../up", "cannot be a Triton model's name"),
    ("ensemble", "speller", "the project has a model `speller` already"),
    ("ensemble", "text_generation", "tritonctl ships ensembles/text_generation.yaml"),
    ("ensemble", "graph", "ensembles/graph.yaml already exists"),
]


@pytest.mark.parametrize(("kind", "name", "problem"), REFUSED)
def test_names_that_cannot_be(
    sandbox: Sandbox, cli: Cli, kind: str, name: str, problem: str
) -> None:
    """Exit code 2, and nothing is written."""
    (sandbox.root / "python_backends" / "mine").mkdir(parents=True)
    (sandbox.root / "ensembles").mkdir()
    (sandbox.root / "ensembles" / "graph.yaml").touch()
    before = sorted(sandbox.root.rglob("*"))
    done = cli("new", kind, name)
    assert done.returncode == 2
    assert problem in done.stderr.replace("\n", " ")
    assert sorted(sandbox.root.rglob("*")) == before


def test_a_step_that_does_not_fit(built: Sandbox, cli: Cli) -> None:
    """Told before anything is written, with both sides."""
    built.write()
    cli("new", "step", "tidy")
    file = built.root / "python_backends" / "tidy" / "backend.toml"
    toml = file.read_text(encoding="utf-8")
    file.write_text(toml.replace("TYPE_STRING", "TYPE_FP64"), encoding="utf-8")
    done = cli("new", "ensemble", "guarded", "--step", "tidy")
    assert done.returncode == 2
    assert "the step tidy writes tidied TYPE_FP64 [1], and speller reads" in done.stderr
    assert not (built.root / "ensembles").exists()
    assert "ensembles" not in yaml.safe_load(built.file.read_text(encoding="utf-8"))


def test_which_model(built: Sandbox, cli: Cli) -> None:
    """With several there is no guess."""
    built.data["models"]["other"] = built.model()
    built.write()
    done = cli("new", "ensemble", "guarded")
    assert (done.returncode, "which model?" in done.stderr) == (2, True)
    assert "--model" in done.stderr
    assert cli("new", "ensemble", "guarded", "--model", "speler").returncode == 2
    assert cli("new", "ensemble", "guarded", "--model", "speller").returncode == 0
    done = cli("new", "step", "more")
    assert "--model MODEL" in done.stdout


def test_without_a_project(sandbox: Sandbox, cli: Cli) -> None:
    """As every verb that needs one; nothing is written."""
    sandbox.file.unlink()
    before = sorted(sandbox.root.rglob("*"))
    done = cli("new", "step", "mine")
    assert (done.returncode, "no tritonctl.yaml in" in done.stderr) == (3, True)
    assert sorted(sandbox.root.rglob("*")) == before


def test_it_renders_from_the_library(built: Sandbox, cli: Cli) -> None:
    """The ensemble is the plan's, as every other model is."""
    built.write()
    cli("new", "ensemble", "guarded")
    built.data["ensembles"] = {"guarded": {}}
    plan = render(built.load(), Silent()).plan
    assert [model.name for model in plan.models_of("guarded")] == [
        "guarded_step",
        "guarded",
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name: str, cli: Cli, tmp_path: Path) -> None:
    """A project that plans as it is, without the scripts that trained it."""
    made = tmp_path / "mine"
    done = cli("new", "example", name, "-o", made)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [f"  cd {made}", "  tritonctl build", "  tritonctl up"]
    assert (made / "checkpoint" / "README.md").is_file()
    assert [str(file) for file in made.rglob("*.py")] == []
    planned = cli("plan", "--device-memory", "16G", "-C", made)
    assert planned.returncode == 0, planned.stderr
    again = cli("new", "example", name, "-o", made)
    assert (again.returncode, "exists" in again.stderr) == (2, True)


def test_examples_are_named(cli: Cli) -> None:
    """In the help, and where there is none of that name."""
    said = " ".join(cli("new", "example", "--help").stdout.split())
    assert [name for name in EXAMPLES if name not in said] == []
    done = cli("new", "example", "number-findr")
    assert done.returncode == 2
    assert "did you mean `number-finder`?" in " ".join(done.stderr.split())

# SPDX-License-Identifier: Apache-2.0
"""docs/reference/json-output.md: every verb's shape, and the shape is what the verb prints."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.commands import verbs
from tests.json_page import ERROR, EXAMPLES, SECTIONS, as_documented, differences
from tritonctl.cli import application
from tritonctl.loadtest.analysis.compare import Comparison
from tritonctl.loadtest.analysis.summary import Summary
from tritonctl.protocol.generation import Generation
from tritonctl.server.release_switch import Switched
from tritonctl.server.reload import Reloaded
from tritonctl.server.smoke.outcomes import SmokeReport

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

TESTS = Path(__file__).resolve().parents[1]
CHECKOUT = TESTS.parent


def test_the_page_has_every_verb_with_json() -> None:
    """And an example of each."""
    taking = {
        verb
        for verb, command in verbs().items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert set(SECTIONS) == taking | {"error"}
    assert [verb for verb, examples in EXAMPLES.items() if not examples] == []
    assert set(EXAMPLES["error"][0]) == ERROR


PRINTED = [
    ("init", f"init {CHECKOUT}/examples/number-speller/checkpoint --into new", 0),
    ("new example", "new example digit-reader", 0),
    ("new step", "new step mine", 0),
    ("new ensemble", "new ensemble guarded", 0),
    ("fetch", "fetch", 0),
    ("doctor", "doctor", 0),
    ("schema", "schema", 0),
    ("build", "build", 0),
    ("build", "build --dry-run", 1),
    ("render", "render", 0),
    ("check", "check models", 0),
    ("graph", "graph ensemble --repository models", 0),
    ("artefacts list", "artefacts list", 0),
    ("artefacts show", "artefacts show speller", 0),
    ("artefacts diff", "artefacts diff speller speller", 0),
    ("artefacts verify", "artefacts verify", 0),
    ("artefacts prune", "artefacts prune --dry-run", 0),
    ("release", "release --no-smoke", 0),
    ("releases list", "releases list", 0),
    ("releases verify", "releases verify", 0),
    ("logs", "logs", 0),
    ("down", "down", 0),
    ("certs", "certs", 0),
    ("deploy compose", "deploy compose", 0),
]
ENSEMBLE = """\
name: "ensemble" platform: "ensemble"
input { name: "I" data_type: TYPE_INT32 dims: 1 }
output { name: "O" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling { step {
  model_name: "broken" input_map { key: "I" value: "I" } output_map { key: "O" value: "O" }
} }
"""


@pytest.fixture
def project(built: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A built project with a log, and a repository of two models, one of them broken."""
    for name, config in (
        ("broken", 'backend: "python"\nmax_batch_size: x'),
        ("ensemble", ENSEMBLE),
    ):
        (built.root / "models" / name / "1").mkdir(parents=True)
        (built.root / "models" / name / "config.pbtxt").write_text(config, encoding="utf-8")
    log = built.root / ".tritonctl" / "server" / "triton.log"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n", encoding="utf-8")
    monkeypatch.chdir(built.root)
    return built


@pytest.mark.parametrize(("verb", "line", "number"), PRINTED)
def test_a_verb_prints_what_the_page_shows(
    project: Sandbox, monkeypatch: pytest.MonkeyPatch, verb: str, line: str, number: int
) -> None:
    """One object, with the fields of the example; those of an error only where one is told."""
    arguments = [*shlex.split(line), "--json", "--quiet"]
    monkeypatch.setattr("sys.argv", ["tritonctl", *arguments])
    done = CliRunner().invoke(application(arguments), arguments)
    printed = as_documented(verb, done.stdout, number)
    if done.exit_code:
        assert set(printed) >= ERROR


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("generate", {each.name for each in fields(Generation)}),
        ("chat", {each.name for each in fields(Generation)}),
        ("reload", {each.name for each in fields(Reloaded)}),
        ("rollback", {each.name for each in fields(Switched)}),
        ("smoke", set(SmokeReport("", ()).as_record())),
        ("loadtest compare", {each.name for each in fields(Comparison)}),
        ("loadtest run", {"folder", "schema"} | {each.name for each in fields(Summary)}),
    ],
)
def test_what_a_server_is_needed_for(verb: str, names: set[str]) -> None:
    """The fields are those of the record."""
    assert set(EXAMPLES[verb][0]) - ERROR == names


@pytest.mark.parametrize(
    ("shown", "printed", "found"),
    [
        ({"a": 1, "b": None}, {"a": 2.5, "b": "x"}, []),
        ({"a": 1, "…": "…"}, {"a": 1, "b": 2}, []),
        ({"a": 1}, {"b": 2}, [".a is not printed", ".b is not in the example"]),
        ({"a": True}, {"a": 1}, [".a: boolean in the example, number printed"]),
        (
            {"a": [{"b": 1}, "…"]},
            {"a": [{"b": "x"}]},
            [".a[].b: number in the example, text printed"],
        ),
        ({"models": {"m": {"a": 1}}}, {"models": {"n": {}}}, [".models.NAME.a is not printed"]),
        ({"models": {"…": "…"}}, {"models": {"n": {}}}, []),
        ({"request": {"a": 1}}, {"request": {}}, []),
    ],
)
def test_differences(shown: Any, printed: Any, found: list[str]) -> None:
    """Fields and types; what the project names are of one kind, whatever their names."""
    assert differences(shown, printed) == found


def test_every_example_is_compared_with_what_is_printed() -> None:
    """Here, or by the test of the verb, which may need a server."""
    text = "".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    text += (TESTS / "loadtests" / "mock_process.py").read_text("utf-8")
    elsewhere = set(re.findall(r'as_documented\(\s*"([a-z ]+)"', text))
    assert set(EXAMPLES) - {verb for verb, _, _ in PRINTED} - elsewhere == {"error"}

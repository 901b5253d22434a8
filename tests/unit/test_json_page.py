# SPDX-License-Identifier: Apache-2.0
"""docs/reference/json-output.md: every verb's shape, and the shape is what the verb prints."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.commands import verbs
from tritonctl.cli import application
from tritonctl.errors import UsageError
from tritonctl.loadtest.analysis.compare import Comparison
from tritonctl.loadtest.analysis.summary import Summary
from tritonctl.protocol.generation import Generation
from tritonctl.server.reload import Reloaded
from tritonctl.smoke.outcomes import SmokeReport

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "reference" / "json-output.md"
MORE = "…"  # what the page leaves out
SECTIONS = dict(
    re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
EXAMPLES = {
    verb: [json.loads(each) for each in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    for verb, text in SECTIONS.items()
}
ERROR = set(UsageError("", remedy="").as_record())


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


def _differences(shown: Any, printed: Any, where: str = "") -> list[str]:
    """Where an example has other fields than what a verb printed; `…` stands for further ones."""
    if isinstance(shown, dict) and isinstance(printed, dict):
        missing = set(shown) - set(printed) - {MORE}
        extra = set() if MORE in shown else set(printed) - set(shown)
        wrong = [f"{where}.{name}" for name in missing | extra]
        for name in set(shown) & set(printed):
            wrong += _differences(shown[name], printed[name], f"{where}.{name}")
        return wrong
    if isinstance(shown, list) and isinstance(printed, list) and shown and printed:
        return _differences(shown[0], printed[0], f"{where}[]")
    return []


# Fields whose own fields are named by the project: stages, artefacts, Triton's models.
NAMED = r"\.(durations_seconds|evaluation|artefacts|inputs|request|result|properties|\$defs)\."
PRINTED = [
    ("init", f"init {CHECKOUT}/examples/number-speller/checkpoint --into new", 0),
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
    printed = json.loads(done.stdout)
    shown = EXAMPLES[verb][number]
    if done.exit_code:
        assert set(printed) >= ERROR
    drop = ERROR if (set(shown) >= ERROR) != (set(printed) >= ERROR) else set()
    left, right = ({k: v for k, v in one.items() if k not in drop} for one in (shown, printed))
    found = [place for place in _differences(left, right) if not re.search(NAMED, place)]
    assert found == [], done.stdout[:2000]


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("generate", {each.name for each in fields(Generation)}),
        ("chat", {each.name for each in fields(Generation)}),
        ("reload", {each.name for each in fields(Reloaded)}),
        ("smoke", set(SmokeReport("", ()).as_record())),
        ("loadtest compare", {each.name for each in fields(Comparison)}),
        ("loadtest run", {"folder", "schema"} | {each.name for each in fields(Summary)}),
    ],
)
def test_what_a_server_is_needed_for(verb: str, names: set[str]) -> None:
    """The fields are those of the record."""
    assert set(EXAMPLES[verb][0]) - ERROR == names

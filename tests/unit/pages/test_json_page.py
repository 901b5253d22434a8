# SPDX-License-Identifier: Apache-2.0
"""The forms of the JSON documents: each verb has one, and prints what it says."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

import pytest
from typer.testing import CliRunner

from tests.commands import verbs
from tests.json_page import ERROR, as_documented, differences, fields_of
from tritonctl.cli import application
from tritonctl.cli.documents.table import DOCUMENTS, STORED_FILES, DocumentForm

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

TESTS = Path(__file__).resolve().parents[2]
CHECKOUT = TESTS.parent


def test_every_verb_with_json_has_a_form() -> None:
    """Of its own, or of a file that it prints as it is stored."""
    taking = {
        verb
        for verb, command in verbs().items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert {*DOCUMENTS, *STORED_FILES} == taking | {"error"}
    assert DOCUMENTS.keys().isdisjoint(STORED_FILES)
    assert set(fields_of(DOCUMENTS["error"][0])) == ERROR


PRINTED = [
    ("init", f"init {CHECKOUT}/examples/number-speller/checkpoint -o new", 0),
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
    ("releases publish", "releases publish --no-smoke", 0),
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
def test_a_verb_prints_its_form(
    project: Sandbox, monkeypatch: pytest.MonkeyPatch, verb: str, line: str, number: int
) -> None:
    """One document, named after the verb; the fields of an error only where one is told."""
    arguments = [*shlex.split(line), "--json", "--quiet"]
    monkeypatch.setattr("sys.argv", ["tritonctl", *arguments])
    done = CliRunner().invoke(application(arguments), arguments)
    printed = as_documented(verb, done.stdout, number)
    if done.exit_code:
        assert set(printed) >= ERROR


class Inner(TypedDict):
    """An object in another."""

    size_bytes: int


class Outer(TypedDict):
    """Every kind of field."""

    name: str | None
    share: float
    ready: NotRequired[bool]
    inner: list[Inner]
    by_name: NotRequired[dict[str, Inner]]
    status: NotRequired[Literal["passed", "failed"]]


GOOD: dict[str, Any] = {"name": "a", "share": 1, "inner": []}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"name": None, "ready": True, "inner": [{"size_bytes": 1}]}, []),
        ({"status": "passed", "by_name": {"m": {"size_bytes": 1}}}, []),
        ({"name": 1}, [".name: <class 'str'>, got 1"]),
        ({"share": True}, [".share: <class 'float'>, got True"]),
        ({"other": 1}, [".other is not documented"]),
        ({"inner": [{}]}, [".inner[].size_bytes is missing"]),
        ({"inner": {}}, [".inner: a list, got {}"]),
        (
            {"by_name": {"m": {"size_bytes": "x"}}},
            [".by_name.NAME.size_bytes: <class 'int'>, got 'x'"],
        ),
        ({"status": "new"}, [".status: typing.Literal['passed', 'failed'], got 'new'"]),
    ],
)
def test_differences(changes: dict[str, Any], found: list[str]) -> None:
    """Fields that are missing or not documented, and values of another type."""
    assert list(differences(DocumentForm((Outer,)), GOOD | changes)) == found
    assert list(differences(DocumentForm((Outer,)), {"name": "a"})) != []


def test_every_form_is_compared_with_what_is_printed() -> None:
    """Here, or by the test of the verb, which may need a server."""
    text = "".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    text += (TESTS / "loadtests" / "mock_process.py").read_text("utf-8")
    elsewhere = set(re.findall(r'as_documented\(\s*"([a-z ]+)"', text))
    compared = {verb for verb, _, _ in PRINTED} | elsewhere
    assert {*DOCUMENTS, *STORED_FILES} - compared == {"error"}


# Values in these units have names that say so.
_UNITS = re.compile(r"\b(bytes|seconds|minutes|milliseconds|percent)\b")
_SAID = re.compile(r"_(bytes|seconds|ms|s|mib|percent|rps|per_s|per_second|share)$|^(ms|n|q|time)$")


def test_names_say_the_unit() -> None:
    """Of every number of the verbs' own documents whose explanation has one."""
    module = runpy.run_path(str(CHECKOUT / "docs" / "json_page.py"))
    for documents in DOCUMENTS.values():
        for part in (part for document in documents for part in document.parts):
            if not part.__module__.startswith("tritonctl.cli.documents"):
                continue
            for name, comment in module["_comments"](part).items():
                assert not _UNITS.search(comment) or _SAID.search(name), (part, name)

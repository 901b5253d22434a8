# SPDX-License-Identifier: Apache-2.0
"""`tritonctl graph`: what is drawn, in every format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from rich.cells import cell_len
from rich.console import Console as RichConsole
from typer.testing import CliRunner, Result

from tests.check_models.ensembles import CLASSIFY, ENSEMBLE, TOKENIZE, composing, ensemble
from tests.examples import examples
from tests.unit.checks.repositories import put
from tests.unit.checks.wiring import Step, Wiring, valid
from tests.unit.conftest import Cli, Sandbox
from tritonctl.checks.drawing.markup import dot, mermaid
from tritonctl.checks.drawing.picture import Picture, picture_of
from tritonctl.checks.drawing.terminal import draw_lines, plain
from tritonctl.checks.examples.files import ExampleFile
from tritonctl.checks.repository import CheckTarget, Repository
from tritonctl.checks.rules import RULES
from tritonctl.cli import application

Files = Mapping[str, str | ExampleFile]
STREAM = composing("tokenize", {"TEXT": "STRING [ 1 ]"}, {"IDS": "INT32 [ 4 ]"}, decoupled=True)
JOIN = composing(
    "classify", {"IDS": "INT32 [ 4 ]", "TEXT": "STRING [ 1 ]"}, {"SCORES": "FP32 [ 2 ]"}
)
READ = 'input_map { key: "IDS" value: "ids" }\n'
JOINED = ENSEMBLE.replace(READ, f'{READ}      input_map {{ key: "TEXT" value: "TEXT" }}\n')
NESTED = """\
name: "outer"
platform: "ensemble"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling {
  step {
    model_name: "m"
    model_version: -1
    input_map { key: "TEXT" value: "TEXT" }
    output_map { key: "SCORES" value: "SCORES" }
  }
}
"""
OUTER = ensemble() | {"outer/config.pbtxt": NESTED, "outer/1/.keep": ""}


def picture(folder: Path, files: Files, name: str = "m") -> Picture:
    repository = Repository.read(put(folder, files), ".", CheckTarget())
    found = picture_of(repository.models[name], repository)
    assert found is not None
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(application(), ["graph", *arguments])


def test_terminal(tmp_path: Path) -> None:
    """Nodes below each other, rails beside, tensors with type and shape, what is wrong marked."""
    put(tmp_path, ensemble(JOINED, STREAM, JOIN))
    done = run("m", "--repository", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    assert (
        done.stdout
        == """\
m  ensemble, batches of up to 8, ≋ decoupled

● request
│
├─○ 1 tokenize  python  ≋ decoupled
│ │   TEXT    STRING  [batch, 1]
│ │
○─┘ 2 classify  python
│   IDS     INT32   [batch, 4]  ← 1 ids
│   TEXT    STRING  [batch, 1]  ✗ TC341
│
◉ answer
   SCORES  FP32  [batch, 2]  ← 2

✗ TC341 classify reads TEXT (one for each request) together with ids (one for
        each response of tokenize)
"""
    )


def test_nested_ensembles_are_framed(tmp_path: Path) -> None:
    """With their own request and answer."""
    assert (
        plain(draw_lines(picture(tmp_path, OUTER, "outer"), 80))
        == """\
outer  ensemble, batches of up to 8

● request
│
○ 1 m  ensemble
│   TEXT    STRING  [batch, 1]
│   ┌╌ m  ensemble, batches of up to 8
│   ┊ ● request
│   ┊ │
│   ┊ ○ 1 tokenize  python
│   ┊ │   TEXT    STRING  [batch, 1]
│   ┊ │
│   ┊ ○ 2 classify  python
│   ┊ │   IDS     INT32  [batch, 4]  ← 1 ids
│   ┊ │
│   ┊ ◉ answer
│   ┊    SCORES  FP32  [batch, 2]  ← 2
│   └╌
│
◉ answer
   SCORES  FP32  [batch, 2]  ← 1
"""
    )


def test_broken_ends(tmp_path: Path) -> None:
    """What nobody writes comes from nothing, what nobody reads goes there; both types are shown."""
    config = ENSEMBLE.replace(READ, READ.replace("ids", "id"))
    text = plain(draw_lines(picture(tmp_path / "a", ensemble(config)), 80))
    assert "✗ nothing" in text
    assert re.search(r"IDS +INT32 +\[batch, 4\] +← id +✗ TC311\n", text)
    other = composing("classify", {"IDS": "INT64 [ 5 ]"}, {"SCORES": "FP32 [ 2 ]"})
    text = plain(draw_lines(picture(tmp_path / "b", ensemble(ENSEMBLE, TOKENIZE, other)), 80))
    assert re.search(r"IDS +INT32 → INT64 +\[batch, 4\] → \[batch, 5\] +← 1 ids", text)
    assert "✗ TC324, TC325" in text
    text = plain(draw_lines(picture(tmp_path / "c", ensemble(ENSEMBLE, TOKENIZE)), 80))
    assert "2 classify  not in this repository  ✗ TC305" in text


def test_a_single_model(tmp_path: Path) -> None:
    """Is a step by itself."""
    text = plain(draw_lines(picture(tmp_path, ensemble(), "classify"), 80))
    assert text.splitlines()[0] == "classify  python, batches of up to 8"
    assert "○ 1 classify  python\n│   IDS     INT32  [batch, 4]\n" in text


def test_the_shipped_ensemble_fits_80_columns(cli: Cli, sandbox: Sandbox) -> None:
    """The project's own repository is what is drawn when none is named."""
    assert cli("build").returncode == 0
    assert cli("render").returncode == 0
    done = cli("graph", "speller")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("speller  ensemble, batches of up to 1")
    assert max(map(cell_len, done.stdout.splitlines())) <= 80
    assert "✗" not in done.stdout
    for step in ("1 speller_tokenizer", "2 speller_engine", "3 speller_detokenizer"):
        assert re.search(rf"○.* {step}  python", done.stdout)
    assert re.search(r"max_tokens|request_output_len +INT32 +\[batch, 1\]", done.stdout)


@examples(20)
@given(wiring=valid())
def test_every_tensor_is_drawn(wiring: Wiring, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Once for each that reads it, in every format; a rail never breaks off."""
    shown = picture(tmp_path_factory.mktemp("graph"), wiring.files())
    record = json.loads(json.dumps(shown.as_record()))
    reads = sorted((step.model, *pair) for step in wiring.steps for pair in step.reads.items())
    models = {node["name"]: node["model"] for node in record["nodes"]}
    drawn_edges = [
        (models[edge["target"]["node"]], edge["target"]["name"], edge["tensor"])
        for edge in record["edges"]
        if edge["target"]["node"] != "answer"
    ]
    assert sorted(drawn_edges) == reads
    assert {e["tensor"] for e in record["edges"] if e["target"]["node"] == "answer"} == set(
        wiring.outputs
    )
    for text in (mermaid(shown), dot(shown)):
        assert all(tensor in text for tensor in wiring.outputs)
    lines = [line for line in plain(draw_lines(shown, 100)).splitlines() if line]
    for above, below in pairwise(lines[1:]):
        for at, mark in enumerate(below[:12]):
            if mark in "┴┘┼┤" and above[at : at + 1] not in "│┼├┤○●✗":
                raise AssertionError(f"a rail begins from nothing:\n{above}\n{below}")


def _quotes_are_balanced(text: str) -> bool:
    return len(re.findall(r'(?<!\\)"', text)) % 2 == 0


def test_markup(tmp_path: Path) -> None:
    """Sound tensors share an arrow, broken ones have their own in red; streams are marked."""
    shown = picture(tmp_path, ensemble(JOINED, STREAM, JOIN))
    text = mermaid(shown)
    assert text.startswith("flowchart TD\n")
    assert '-->|"TEXT\u00a0STRING\u00a0[batch,\u00a01]"| m_1\n' in text
    text = text.replace("\u00a0", " ")
    assert '  m_1["1 tokenize · decoupled"]\n  class m_1 decoupled\n' in text
    assert '  m_1 -->|"ids (IDS) INT32 [batch, 4]"| m_2\n' in text
    assert '  m_request -.->|"✗ TC341 TEXT STRING [batch, 1]"| m_2\n  linkStyle 3 stroke' in text
    text = dot(shown)
    assert text.startswith("digraph {\n")
    assert text.endswith("}\n")
    assert '"m_1" -> "m_2" [label="ids (IDS) INT32 [batch, 4]\\l"]' in text
    assert 'label="✗ TC341 TEXT STRING [batch, 1]\\l", color="#c0392b"' in text
    assert _quotes_are_balanced(text)


def test_nested_ensembles_are_clusters(tmp_path: Path) -> None:
    """Entered by their request, left by their answer."""
    shown = picture(tmp_path, OUTER, "outer")
    text = mermaid(shown).replace("\u00a0", " ")
    assert '  subgraph m_1 ["1 m"]\n' in text
    assert '  m_request -->|"TEXT STRING [batch, 1]"| m_1_request\n' in text
    assert '  m_1_answer -->|"SCORES FP32 [batch, 2]"| m_answer\n' in text
    assert 'subgraph "cluster_m_1" {' in dot(shown)
    inner = shown.as_record()["nodes"][1]["inner"]
    assert [node["model"] for node in inner["nodes"]] == [None, "tokenize", "classify", None]


def test_json(tmp_path: Path) -> None:
    """Both ends of each tensor, with what they say of it."""
    put(tmp_path, ensemble(ENSEMBLE, STREAM, CLASSIFY))
    record = json.loads(run("m", "--repository", str(tmp_path), "--format", "json").stdout)
    assert (record["model"], record["decoupled"], record["findings"]) == ("m", True, [])
    [edge] = [edge for edge in record["edges"] if edge["tensor"] == "ids"]
    said = {"data_type": "TYPE_INT32", "dims": [4], "batched": True}
    assert edge["source"] == {"node": "1", "name": "IDS"} | said
    assert edge["target"] == {"node": "2", "name": "IDS"} | said
    assert [node["decoupled"] for node in record["nodes"]] == [None, True, False, None]


def test_an_ensemble_inside_itself_is_drawn_once(tmp_path: Path) -> None:
    """And marked."""
    files = ensemble() | {"m/config.pbtxt": NESTED.replace('"outer"', '"m"')}
    text = plain(draw_lines(picture(tmp_path, files), 80))
    assert "○ 1 m  ensemble  ✗ TC307" in text
    assert text.count("request") == 1


def test_names_cannot_do_harm(tmp_path: Path) -> None:
    """Quotes, brackets, and commands to a terminal stay letters in every format."""
    odd = '\\" ]| \\033[31m<b>\\n{}'
    config = ENSEMBLE.replace('"ids"', f'"{odd}"')
    shown = picture(tmp_path, ensemble(config))
    for text in (plain(draw_lines(shown, 80)), mermaid(shown), dot(shown)):
        assert "\x1b" not in text
    assert "<b>" not in mermaid(shown)
    for line in mermaid(shown).splitlines():
        assert line.count('"') in (0, 2)
    assert _quotes_are_balanced(dot(shown))


def test_narrow_terminals_lose_nothing(tmp_path: Path) -> None:
    """What does not fit goes on the next line."""
    step = Step("s" * 40, {"A" * 40: "INT32 [ 1, 2, 3 ]"}, {"B": "INT32 [ 4 ]"}, {}, {})
    step = Step(step.model, step.inputs, step.outputs, {"A" * 40: "in"}, {"B": "out"})
    wiring = Wiring({"in": "INT32 [ 1, 2, 3 ]"}, {"out": "INT32 [ 4 ]"}, (step,))
    text = plain(draw_lines(picture(tmp_path, wiring.files()), 40))
    assert "A" * 40 in text
    assert "[batch, 1, 2, 3]\n" in text


def test_colours_are_for_terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets none, a terminal does."""
    put(tmp_path, ensemble(JOINED, STREAM, JOIN))
    assert "\x1b" not in run("m", "--repository", str(tmp_path)).stdout
    monkeypatch.delenv("NO_COLOR")
    terminal = RichConsole(force_terminal=True, width=80, color_system="standard", highlight=False)
    monkeypatch.setattr("tritonctl.cli.console.output._rich_console", lambda: terminal)
    with terminal.capture() as captured:
        from tritonctl.cli.console.output import Console

        Console().draw(picture(tmp_path, {}))
    assert "\x1b[1;31m✗ TC341" in captured.get()


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    """Says what is there, or what to do next."""
    put(tmp_path, ensemble() | {"broken/config.pbtxt": "}{"})
    done = run("n", "--repository", str(tmp_path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "has no model n" in done.stderr
    assert "broken, classify, m, tokenize" in done.stderr
    done = run("broken", "--repository", str(tmp_path))
    assert done.exit_code == 6
    assert "tritonctl check" in done.stderr
    done = run("m", "--repository", str(tmp_path / "none"))
    assert done.exit_code == 2
    assert "cannot be read" in done.stderr


@pytest.mark.parametrize("name", [name for name in RULES if name.startswith("TC3")])
def test_every_mistake_can_be_drawn(name: str, tmp_path: Path) -> None:
    """Mistakes are listed below the picture, except in what is no ensemble or in a step's code."""
    rule = RULES[name]
    shown = picture(tmp_path, rule.bad_example)
    text = plain(draw_lines(shown, 80))
    assert mermaid(shown)
    assert dot(shown)
    assert rule.severity == "advice" or name in text or name in ("TC301", "TC302", "TC354")

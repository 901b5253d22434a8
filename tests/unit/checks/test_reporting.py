# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl check` prints, in every format, and how it ends."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.check_models.models import CONFIG, changed, python_model
from tests.unit.checks.repositories import put
from tritonctl.cli import application

ENTRY = 'parameters { key: "k" value { } }'
BAD = changed("max_batch_size: 8", f"max_batchsize: 8\n{ENTRY}\n{ENTRY}")
TEXT = """\
models/m/config.pbtxt:3:1 TC104 error: ModelConfig has no field max_batchsize
    max_batchsize: 8
    ^^^^^^^^^^^^^
  why: Triton refuses the model.
  fix: did you mean max_batch_size?

models/m/config.pbtxt:5:12 TC108 warning: parameters has 'k' twice: Triton takes the last one
    parameters { key: "k" value { } }
               ^^^^^^^^^^^^^^^^^^^^^^
  why: Triton silently uses the last value; earlier ones have no effect.
  fix: remove the wrong one

1 model checked: 1 error, 1 warning
"""


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository called models, and the user beside it."""
    monkeypatch.chdir(tmp_path)
    return put(tmp_path / "models", BAD)


def check(*arguments: str, status: int = 6) -> str:
    done = CliRunner().invoke(application(), ["check", *arguments])
    assert done.exit_code == status, done.output
    return done.stdout


def test_text() -> None:
    """As linters do it."""
    assert check("models") == TEXT


@pytest.mark.parametrize(
    ("text", "named", "remedy"),
    [
        ("\ufeffname", "unexpected byte order mark U+FEFF", "remove it"),
        ("name\xa0", "unexpected no-break space U+00A0", "write a space in its place"),
        ("na\u200bme", "unexpected zero width space U+200B", "remove it"),
        ("name: \u201cm\u201d", "found left double quotation mark \u201c U+201C", 'write " in'),
        ("max_batch_size: \u22128", "found minus sign \u2212 U+2212", "write - in its place"),
        ("name: \xe9", "found latin small letter e with acute \xe9 U+00E9", "correct it there"),
    ],
)
def test_characters_are_named(repository: Path, text: str, named: str, remedy: str) -> None:
    """As few editors show a difference."""
    put(repository, {"m/config.pbtxt": text, "m/1/model.py": ""})
    shown = check("models")
    assert named in shown
    assert f"fix: {remedy}" in shown


def test_utf16_is_named(repository: Path) -> None:
    """With a command, because the file must be written anew."""
    (repository / "m" / "config.pbtxt").write_bytes('name: "m"'.encode("utf-16"))
    shown = check("models")
    assert "the file is UTF-16, not UTF-8" in shown
    assert "iconv -f UTF-16 -t UTF-8 models/m/config.pbtxt" in shown


def test_what_a_terminal_would_obey_is_not_shown(repository: Path) -> None:
    """Escapes, right-to-left marks, bytes that are no text; the underlining stays in its place."""
    text = 'name: "m" # \x1b[2J\u202e\nbackend: "python" \x1b]0;t\x07'
    put(repository, {"m/config.pbtxt": text, "m/1/model.py": ""})
    shown = check("models")
    assert "m/config.pbtxt:2:19 TC103 error: invalid text format: unexpected character" in shown
    assert '    backend: "python" \ufffd]0;t\ufffd\n                      ^\n' in shown
    (repository / "m" / "config.pbtxt").write_bytes(b'name: "m" \xf4')
    shown = check("models")
    assert "unexpected byte 0xF4" in shown
    assert shown.replace("\n", "").replace("\ufffd", "").isprintable()


def test_of_a_very_long_line_only_what_is_meant_is_shown(repository: Path) -> None:
    """Somebody's generated file: one line of half a megabyte."""
    many = " ".join(
        f'parameters {{ key: "{n}" value {{ string_value: "1" }} }}' for n in range(5000)
    )
    put(repository, {"m/config.pbtxt": f'backend: "python" {many} max_batchsize: 8 {many}'})
    before, marked = next(
        (line, mark)
        for line, mark in pairwise(check("models").splitlines())
        if "max_batchsize: 8" in line and mark.lstrip().startswith("^")
    )
    assert before.startswith("    …")
    assert before.endswith("…")
    assert len(before) < 200
    at = marked.index("^")
    assert before[at : at + len(marked.strip())] == "max_batchsize"


def test_a_name_of_two_lines_is_shown_on_one(repository: Path) -> None:
    """A finding begins with its place, and ends where the line does."""
    put(repository, {"n\nn/config.pbtxt": 'backend: "python"', "n\nn/1/other.py": ""})
    assert "models/n\\nn/1:1:1 TC004 error: " in check("models")


def test_json() -> None:
    """Every field of every finding."""
    told = json.loads(check("models", "--format", "json"))
    assert (told["models"], told["counts"]) == (1, {"error": 1, "warning": 1, "advice": 0})
    first = told["findings"][0]
    assert (first["path"], first["line"], first["rule"]) == ("models/m/config.pbtxt", 3, "TC104")
    assert first["fixable"] is True


def test_github() -> None:
    """One workflow command a finding."""
    lines = check("models", "--format", "github").splitlines()
    place = "file=models/m/config.pbtxt,line=3,col=1,title=TC104"
    assert lines[0] == (
        f"::error {place}::ModelConfig has no field max_batchsize (did you mean max_batch_size?)"
    )
    assert lines[1].startswith("::warning file=")


def test_sarif() -> None:
    """Rules, results, and regions that point into the file."""
    told = json.loads(check("models", "--format", "sarif"))
    [run] = told["runs"]
    assert told["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["TC104", "TC108"]
    [place] = run["results"][0]["locations"]
    region = {"startLine": 3, "startColumn": 1, "endColumn": 14}
    assert place["physicalLocation"]["region"] == region
    assert [result["ruleIndex"] for result in run["results"]] == [0, 1]


def test_json_of_a_very_long_line(tmp_path: Path) -> None:
    """Each finding has a piece of it, not all of it."""
    put(tmp_path / "long", python_model(CONFIG + "nothing: 1 " * 1_000))
    told = json.loads(check("long", "--format", "json"))["findings"]
    assert len(told) == 1_000
    assert {len(one["text"]) for one in told[:100]} == {2_000}
    assert all(one["text"].startswith("nothing") for one in told[:100])


def test_a_million_findings_are_counted(tmp_path: Path) -> None:
    """A thousand of each rule are told; every format says how many are left out."""
    put(tmp_path / "many", python_model(CONFIG + "nothing: 1 " * 3_000))
    text = check("many")
    assert text.count(" TC104 error: ModelConfig has no field nothing\n") == 1_000
    assert "many/m TC104 error: 2,000 more are left out\n" in text
    assert text.endswith("1 model checked: 3,000 errors\n")
    told = json.loads(check("many", "--format", "json"))
    left_out = {"model": "many/m", "rule": "TC104", "severity": "error", "count": 2_000}
    assert (told["omitted"], told["counts"]["error"]) == ([left_out], 3_000)
    assert check("many", "--format", "github").endswith(
        "::error title=TC104::many/m: 2000 more are left out\n"
    )
    [run] = json.loads(check("many", "--format", "sarif"))["runs"]
    [notice] = run["invocations"][0]["toolExecutionNotifications"]
    assert notice["message"]["text"] == "many/m TC104 error: 2,000 more are left out"


def test_hits_of_a_rule_are_bounded_in_each_model(tmp_path: Path) -> None:
    """Whatever rule makes them, and in every model alone."""
    groups = "instance_group { count: -1 } " * 1_002
    for name in ("many/a", "many/b"):
        put(tmp_path / name, {"config.pbtxt": CONFIG.replace('"m"', f'"{name[-1]}"') + groups})
        put(tmp_path / name, {"1/model.py": ""})
    told = json.loads(check("many", "--format", "json", "--select", "TC605", status=0))
    assert len(told["findings"]) == 2_000
    assert [(one["model"], one["count"]) for one in told["omitted"]] == [
        ("many/a", 2),
        ("many/b", 2),
    ]


def test_more_unread_values_than_have_stand_ins(tmp_path: Path) -> None:
    """Nothing is said that depends on one of them."""
    dims = "dims: [ " + "many, " * 1_200 + "0 ]"
    put(tmp_path / "many", changed("dims: [ 4 ]", dims))
    told = json.loads(check("many", "--format", "json"))
    assert {one["rule"] for one in told["findings"]} == {"TC105"}
    assert told["omitted"] == [
        {"model": "many/m", "rule": "TC105", "severity": "error", "count": 2 * 1_200 - 1_000}
    ]


def test_sarif_has_uris(repository: Path) -> None:
    """Whatever folders are called."""
    repository.rename(repository.with_name("my models"))
    told = json.loads(check("my models", "--format", "sarif"))
    places = [one["locations"][0]["physicalLocation"] for one in told["runs"][0]["results"]]
    assert {place["artifactLocation"]["uri"] for place in places} == {"my%20models/m/config.pbtxt"}


def test_rules_are_chosen() -> None:
    """By id or by the beginning of one; warnings alone are no failure."""
    assert "TC104" not in check("models", "--ignore", "TC104", status=0)
    assert "TC108" not in check("models", "--select", "tc104")
    assert check("models", "--select", "TC0", status=0) == "1 model checked: nothing found\n"
    assert (
        "unknown rule TX1" in CliRunner().invoke(application(), ["check", "--select", "TX1"]).output
    )


def test_fix(repository: Path) -> None:
    """Mended, then checked."""
    assert "1 warning" in check("models", "--fix", status=0)
    config = (repository / "m" / "config.pbtxt").read_text(encoding="utf-8")
    assert config == CONFIG.replace("max_batch_size: 8", f"max_batch_size: 8\n{ENTRY}\n{ENTRY}")


def test_explain() -> None:
    """Reason, both examples, how to leave it out."""
    told = check("--explain", "TC104", status=0)
    assert "TC104 unknown-field (error)" in told
    assert "max_batchsize: 8" in told
    assert "tritonctl: ignore[TC104]" in told


def test_an_unknown_rule_has_a_nearest_one() -> None:
    """By its id or its name; what is like none is not guessed."""
    for asked, nearest in (("TC0229", "`TC229`"), ("tc99", "`TC"), ("lfs-pointr", "`TC016`")):
        told = CliRunner().invoke(application(), ["check", "--explain", asked]).output
        assert f"unknown rule {asked}" in told
        assert f"did you mean {nearest}" in told
    told = CliRunner().invoke(application(), ["check", "--explain", "nonsense"]).output
    assert "did you mean" not in told


def test_several_repositories(tmp_path: Path) -> None:
    """One report; a folder that is not there is the user's mistake."""
    put(tmp_path / "more", python_model())
    assert check("models", "more").endswith("2 models checked: 1 error, 1 warning\n")
    assert (
        "nowhere cannot be read" in CliRunner().invoke(application(), ["check", "nowhere"]).output
    )

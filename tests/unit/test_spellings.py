# SPDX-License-Identifier: Apache-2.0
"""Earlier spellings of options do what today's do, and say how they are called now."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tritonctl.cli import application

EARLIER = [
    ("plan --profile h100", "plan --env h100"),
    ("deploy compose --profile=h100", "deploy compose --env=h100"),
    ("plan --gpu H100 --gpu L4", "plan --gpus H100 --gpus L4"),
    ("loadtest capacity --seconds 20", "loadtest capacity --duration 20"),
    ("check --server project models", "check --url project models"),
    ("top --url h:8002 -i 3", "top --metrics-url h:8002 -i 3"),
    ("smoke --metrics h:2 --model a --model b", "smoke --metrics-url h:2 --models a --models b"),
    ("smoke h:8001 --timeout 9", "smoke --url=h:8001 --timeout 9"),
]


def _parsed(line: str) -> tuple[dict[str, Any], str]:
    """The values that a verb gets, and what standard error says meanwhile."""
    command: Any = get_command(application())
    words = shlex.split(line)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    with CliRunner().isolation() as (_, stderr, *_):
        values = command.make_context(command.name, words).params
        return values, stderr.getvalue().decode()


@pytest.mark.parametrize(("earlier", "today"), EARLIER)
def test_an_earlier_spelling_is_todays(earlier: str, today: str) -> None:
    """With a line on standard error for each; --quiet leaves it out."""
    expected, silent = _parsed(today)
    values, told = _parsed(earlier)
    assert (values, silent) == (expected, "")
    pairs = zip(earlier.split(), today.split(), strict=True)
    notes = [f"note: `{a.split('=')[0]}` is now `{b}`" for a, b in pairs if a != b]
    assert told.splitlines() == notes
    assert _parsed(f"{earlier} -q")[1] == ""


@pytest.mark.parametrize(
    "line",
    [
        "build -- --profile",
        "generate speller 7 --stop --profile",
        "loadtest run --model other --url h:8001",
        "loadtest capacity --metrics-url h:8002 --output=--seconds",
    ],
)
def test_other_words_stay(line: str) -> None:
    """Behind `--`, as the value of another option, and where a verb has an option of that name."""
    assert _parsed(line)[1] == ""


@pytest.mark.parametrize(("earlier", "today"), EARLIER)
def test_help_does_not_show_it(earlier: str, today: str) -> None:
    """Nor does it show an argument that is an option now."""
    verb = [word for word in earlier.split(" -", maxsplit=1)[0].split() if ":" not in word]
    text = CliRunner().invoke(application(), [*verb, "--help"]).stdout
    changed = {*earlier.split()} - {*today.split()}
    for option in (word.partition("=")[0] for word in changed):
        assert f" {option} " not in text
    assert "[address]" not in text.lower()

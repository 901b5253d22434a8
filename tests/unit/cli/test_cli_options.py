# SPDX-License-Identifier: Apache-2.0
"""Groups of options: what Typer sees of them, and what a verb gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from tests.commands import verbs
from tritonctl.cli import application
from tritonctl.cli.options import OutputOptions, expand_options


@dataclass(frozen=True)
class Inner:
    """A group in a group."""

    level: Annotated[int, typer.Option("--level", min=1, help="how much")] = 3


@dataclass(frozen=True)
class Outer:
    """A group."""

    name: Annotated[str | None, typer.Option(help="of it")] = None
    inner: Inner = field(default_factory=Inner)
    tags: Annotated[list[str] | None, typer.Option("--tag", help="repeatable")] = None


def _run(*arguments: str) -> str:
    app = typer.Typer()

    @app.command()
    @expand_options
    def command(
        *,
        first: Annotated[str, typer.Argument(help="a word")],
        group: Outer,
        last: Annotated[bool, typer.Option("--last", help="at the end")] = False,
        voice: OutputOptions,
    ) -> None:
        """Do something."""
        typer.echo(f"{first} {group} {last} {voice.console().as_json}")

    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_group_becomes_its_options() -> None:
    """In their order, between the command's own; groups in groups, too."""
    text = _run("--help")
    names = ["--name", "--level", "--tag", "--last", "--json", "--quiet"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "Do something." in text


def test_a_verb_gets_the_groups() -> None:
    """Made of what was given, defaults otherwise."""
    assert _run("a") == f"a {Outer()} False False\n"
    given = _run("a", "--name", "n", "--level", "5", "--tag", "x", "--tag", "y", "--last", "--json")
    assert given == f"a {Outer('n', Inner(5), ['x', 'y'])} True True\n"


def test_help_shows_the_defaults() -> None:
    """Square brackets in a help text are markup, and `[default: all]` would not be seen."""
    commands: list[Any] = [typer.main.get_command(application())]
    for command in commands:
        commands.extend(getattr(command, "commands", {}).values())
        for parameter in command.params:
            assert "[" not in (getattr(parameter, "help", None) or ""), parameter.name
    text = CliRunner().invoke(application(["build"]), ["build", "--help"], color=False).output
    assert "[default: (all)]" in text


# README, "Use it": every verb, those that work on a project, those on one deployment of it.
EVERY = {"--json", "--quiet"}
PROJECT = EVERY | {"--project"}
DEPLOYMENT = PROJECT | {"--env", "--set"}
OTHERS = {
    **dict.fromkeys(
        ("quickstart", "init", "schema", "certs", "new example", "loadtest mock"), EVERY
    ),
    **dict.fromkeys(("doctor", "loadtest report"), PROJECT),
    **{f"artefacts {verb}": PROJECT for verb in ("list", "show", "diff", "verify", "prune")},
}


VERBS = verbs()


@pytest.mark.parametrize("verb", VERBS)
def test_common_options(verb: str) -> None:
    """Each verb has those of its kind, and no other of them."""
    known = {name for parameter in VERBS[verb].params for name in parameter.opts}
    assert known & DEPLOYMENT == OTHERS.get(verb, DEPLOYMENT)

# SPDX-License-Identifier: Apache-2.0
"""Every `tritonctl` command in the documentation is one that the tool takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tritonctl.cli import application

CHECKOUT = Path(__file__).resolve().parents[3]
PAGES = [*sorted(CHECKOUT.glob("docs/**/*.md")), CHECKOUT / "README.md"]
_BLOCK = re.compile(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|[|;&(] *|\$ |/)tritonctl ([^#|&;)\n]*)", re.MULTILINE)
_BEHIND = re.compile(r"\s(?:\d?[<>].*)$")  # a redirection


def commands(page: Path) -> list[str]:
    """What stands behind `tritonctl` in the page's shell blocks."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
    return [_BEHIND.sub("", given).strip() for block in blocks for given in _COMMAND.findall(block)]


DOCUMENTED = sorted({(given, page) for page in PAGES for given in commands(page)})


def test_the_documentation_has_commands() -> None:
    """Else the pattern finds them no more."""
    assert len(DOCUMENTED) > 50


@pytest.mark.parametrize(("given", "page"), DOCUMENTED, ids=[given for given, _ in DOCUMENTED])
def test_the_tool_takes_it(given: str, page: Path) -> None:
    """Verb, options and arguments are valid; nothing is run."""
    command: Any = get_command(application())
    arguments = shlex.split(given)
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        assert name in command.commands, f"{page.relative_to(CHECKOUT)}: no verb {name}"
        command = command.commands[name]

    command.make_context(command.name, arguments, resilient_parsing="--help" in arguments)

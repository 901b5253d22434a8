# SPDX-License-Identifier: Apache-2.0
"""Earlier spellings of options: hidden, taken as today's, with a line on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

# By verb; what every verb that has the new one takes; what was an argument.
_OF_VERB = {
    "capacity": {"--seconds": "--duration"},
    "check": {"--server": "--url"},
    "plan": {"--gpu": "--gpus"},
    "smoke": {"--metrics": "--metrics-url", "--model": "--models"},
    "top": {"--url": "--metrics-url"},
}
_OF_ALL = {"--profile": "--env"}
_ARGUMENT = {"smoke": "--url"}


def respelled(command: Any, args: Sequence[str]) -> list[str]:
    """The words of a command line, earlier spellings of the verb's options replaced.

    Neither values of options nor what follows `--` are touched.
    """
    options = [one for one in command.params if one.param_type_name == "option"]
    known = {name for option in options for name in option.opts}
    valued = {name for option in options if not option.is_flag for name in option.opts}
    earlier = _OF_VERB.get(command.name, {}) | {
        old: new for old, new in _OF_ALL.items() if new in known
    }
    words, done = iter(args), list[str]()
    for word in words:
        if word == "--":
            return [*done, word, *words]
        name, equals, value = word.partition("=")
        today = earlier.get(name, name)
        if not word.startswith("-") and command.name in _ARGUMENT:
            today, equals, value = _ARGUMENT[command.name], "=", word
        if today != name:
            _note(f"note: `{name}` is now `{today}{equals}{value}`", args)
        done.append(f"{today}{equals}{value}")
        if today in valued and not equals:
            done += islice(words, 1)
    return done


def _note(text: str, args: Sequence[str]) -> None:
    from tritonctl.cli.console.voice import Console

    Console(quiet=not {"--quiet", "-q"}.isdisjoint(args)).note(text)

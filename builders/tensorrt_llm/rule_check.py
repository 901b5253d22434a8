# SPDX-License-Identifier: Apache-2.0
"""Checks rules: functions that raise BuildError, each named after the condition it requires.

A rule's id is its name with dashes. It ends the problem. Standard library only.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from buildlib.problems import BuildError

Subject = TypeVar("Subject")


def check_rules(rules: Iterable[Callable[[Subject], None]], subject: Subject) -> None:
    """Check every rule in turn. Raises the BuildError of the first broken rule."""
    for rule in rules:
        try:
            rule(subject)
        except BuildError as error:
            problem = f"{error.problem} [{rule_id(rule)}]"
            raise BuildError(problem, remedy=error.remedy) from error


def refuse(problem: str, remedy: str) -> None:
    """Raise a BuildError."""
    raise BuildError(problem, remedy=remedy)


def rule_id(rule: Callable[[Any], None]) -> str:
    """Return the id of a rule."""
    return rule.__name__.replace("_", "-")

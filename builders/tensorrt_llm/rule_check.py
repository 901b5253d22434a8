# SPDX-License-Identifier: Apache-2.0
"""Rules: functions that refuse, each named for what it asks.

A rule's name with dashes is its id, which ends every refusal. Standard library only.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from buildlib.problems import BuildError

Subject = TypeVar("Subject")


def check_rules(rules: Iterable[Callable[[Subject], None]], subject: Subject) -> None:
    """Ask every rule in turn. Raises BuildError for the first that refuses."""
    for rule in rules:
        try:
            rule(subject)
        except BuildError as error:
            problem = f"{error.problem} [{rule_id(rule)}]"
            raise BuildError(problem, remedy=error.remedy) from error


def refuse(problem: str, remedy: str) -> None:
    """Raise BuildError."""
    raise BuildError(problem, remedy=remedy)


def rule_id(rule: Callable[[Any], None]) -> str:
    """Return a rule's id."""
    return rule.__name__.replace("_", "-")

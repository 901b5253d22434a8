# SPDX-License-Identifier: Apache-2.0
"""Rules about what a configuration says, silent where it cannot be read as it is meant."""

from __future__ import annotations

from collections.abc import Iterable

from tritonctl.checks.config.message import HARMLESS
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import Check, Rule


def when_read(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The same rules; a value that could not be read is told once, not as absent, too."""
    return tuple(rule._replace(check=_silent(rule.check)) if rule.check else rule for rule in rules)


def _silent(check: Check) -> Check:
    def found(model: Model, repository: Repository) -> Iterable[Hit]:
        problems = model.config.problems if model.config else ()
        if any(problem.mistake not in HARMLESS for problem in problems):
            return ()
        return check(model, repository)

    found.__doc__ = check.__doc__
    return found

# SPDX-License-Identifier: Apache-2.0
"""A rule: what it looks for, why that matters, and an example of each kind that tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from tritonctl.checks.findings import Hit, Severity
from tritonctl.checks.repository import Model, Repository, Target

Check = Callable[[Model, Repository], Iterable[Hit]]
# As `Check`, once for all models together: each hit with the model it is about.
WholeCheck = Callable[[Repository], Iterable[tuple[Model, Hit]]]
# Where the mistake in an example comes to light, on a server of the Python backend without a GPU:
# when the model is loaded, when requests come, or only with what such a server lacks.
Shows = Literal["load", "traffic", "elsewhere"]
TESTED = Target("2.51.0")


# Records of the checker are named tuples: a dataclass takes ten times as long to make, and most of
# what one model costs is start-up.
class File(NamedTuple):
    """A file of an example that is more than text. link: what it is a symbolic link to."""

    content: bytes = b""
    mode: int | None = None
    link: str | None = None


# Files of a small repository, by path: "m/config.pbtxt", "m/1/model.py".
Example = Mapping[str, str | File]


class Rule(NamedTuple):
    """One rule. `summary` is a noun phrase; `answers`: reports of users whom it would have helped.

    `bad` has it, `good` is the same repository without; the model `m` is the one looked at.
    One of check and check_all is given. `target`: what is known of the server when tests run them.

    shows: "load" means that a server refuses the bad example exactly when the rule is an error.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    bad: Example
    good: Example
    check: Check | None = None
    check_all: WholeCheck | None = None
    shows: Shows = "load"
    answers: tuple[str, ...] = ()
    target: Target = TESTED

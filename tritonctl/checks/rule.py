# SPDX-License-Identifier: Apache-2.0
"""A rule: what it looks for, why that matters, and the function that finds it.

A function becomes a rule by a decorator, its severity. Its parameters say what it needs, and it
runs only where that exists:

    @warning("TC506 delay-defeated", summary="a queue delay next to ...", why="...")
    def never_delayed(config: ConfigMessage, model: Model) -> Iterator[Hit]:

An underscore in front: the rule needs it to be there, and no more.
`repository` alone: the rule runs once for all models, and each hit has its model.

To add one: the function, in a module of its family; examples/<family>/<id>.yaml with a bad and a
good repository; `make rules` for its page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Literal, NamedTuple, TypeVar, cast

from tritonctl.checks.examples.files import Example, examples_of
from tritonctl.checks.findings import Hit, Severity
from tritonctl.checks.repository import Model, Repository, Target
from tritonctl.checks.subjects import SUBJECTS

# When the mistake in an example shows, on a server of the Python backend without a GPU:
# when the model is loaded, when requests come, or only with what such a server lacks.
Shows = Literal["load", "traffic", "elsewhere"]
Check = TypeVar("Check", bound=Callable[..., Iterator[Hit]])

_WHOLE = ("repository",)
# What holds for all rules of a family or module, unless a rule says otherwise.
_WHY = {"ensembles": "Triton refuses the ensemble."}
_REFUSED = "Triton refuses the model."
# These need other backends, a GPU, or a machine that is too small.
_ELSEWHERE = {
    *("tensorrt_llm", "tensors.batch", "tensors.files", "tensors.graph", "tensors.pytorch"),
    *("tensors.completed", "config.optimization"),
    *("capacity.gpu_memory", "instances.backends", "instances.threads"),
}
# These are about values, which must be readable.
_OF_VALUES = {"config", "layout.files", "layout.versions"}


# Records of the checker are named tuples: a dataclass takes ten times as long to make, and most of
# what one model costs is start-up.
class Rule(NamedTuple):
    """One rule. `summary` is a noun phrase; `answers`: reports of users whom it would have helped.

    shows: "load" means that a server refuses the bad example exactly when the rule is an error.
    needs_valid_config: silent while a value of config.pbtxt cannot be read, so that one mistake is
    one finding.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    check: Callable[..., Iterator[Hit]]
    takes: tuple[str, ...]
    family: str
    shows: Shows = "load"
    answers: tuple[str, ...] = ()
    needs_valid_config: bool = False

    @property
    def bad(self) -> Example:
        """A small repository that has the mistake, in its model `m`."""
        return examples_of(self.family, self.id).bad

    @property
    def good(self) -> Example:
        """The same repository without the mistake."""
        return examples_of(self.family, self.id).good

    @property
    def target(self) -> Target:
        """What is known of the server that the examples are for."""
        return examples_of(self.family, self.id).target

    def hits(self, repository: Repository) -> Iterator[tuple[Model, Hit]]:
        """What the rule finds in a repository."""
        if self.takes == _WHOLE:
            for hit in self.check(repository):
                yield hit.model or repository.folder(), hit
            return
        for model in repository.models.values():
            for hit in self.hits_of(model, repository):
                yield model, hit

    def hits_of(self, model: Model, repository: Repository) -> Iterator[Hit]:
        """What it finds in one model; nothing where the rule is about all of them together."""
        if self.takes == _WHOLE or (self.needs_valid_config and not model.config_is_valid):
            return
        subjects = [SUBJECTS[name](model, repository) for name in self.takes]
        if all(subject is not None for subject in subjects):
            yield from self.check(*subjects)


_rules: dict[str, Rule] = {}


def _rule(
    severity: Severity,
    title: str,
    *,
    summary: str,
    why: str | None = None,
    shows: Shows | None = None,
    answers: tuple[str, ...] = (),
) -> Callable[[Check], Check]:
    """Make the decorated function a rule. title: id and name; its package is its family.

    why: that Triton refuses the model, when absent.
    """
    rule_id, name = title.split()

    def register(check: Check) -> Check:
        code = cast("FunctionType", check).__code__
        takes = tuple(name.lstrip("_") for name in code.co_varnames[: code.co_argcount])
        if rule_id in _rules or not set(takes) <= set(SUBJECTS):
            raise TypeError(f"{rule_id} is given twice, or takes something unknown: {takes}")
        family, module = check.__module__.split(".")[-2:]
        homes = {family, f"{family}.{module}"}
        reason = why or _WHY.get(family, _REFUSED)
        _rules[rule_id] = Rule(
            *(rule_id, name, severity, summary, reason, check, takes, family),
            shows=shows or ("elsewhere" if homes & _ELSEWHERE else "load"),
            answers=answers,
            needs_valid_config=bool(homes & _OF_VALUES),
        )
        return check

    return register


error = partial(_rule, "error")
warning = partial(_rule, "warning")
advice = partial(_rule, "advice")


def rules_by_id() -> dict[str, Rule]:
    """The rules of all modules imported so far, in the order of their ids."""
    return dict(sorted(_rules.items()))

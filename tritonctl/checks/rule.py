# SPDX-License-Identifier: Apache-2.0
"""Rules: the mistake that each one finds, its consequence, and the function that finds it.

A decorator with the severity turns a function into a rule. The names of its parameters select its
inputs, and the rule runs only for models that have all of them:

    @warning("TC506 delay-defeated", summary="a queue delay next to ...", reason="...")
    def defeated_delay(config: ConfigMessage, model: Model) -> Iterator[Hit]:

A parameter with a leading underscore is required but not used. A rule with the single parameter
`repository` runs once for all models, and each hit has its model.

To add a rule, write the function in a module of its family's package and a bad and a good
repository in examples/<family>/<id>.yaml, then run `make rules` for its page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Literal, NamedTuple, TypeVar, cast

from tritonctl.checks.examples.files import Example, examples_of
from tritonctl.checks.findings import Hit, Severity
from tritonctl.checks.repository import CheckTarget, Model, Repository
from tritonctl.checks.rule_inputs import RULE_INPUTS

# When the mistake of an example shows on a test server, which has the Python backend and no GPU:
# when the model is loaded, when requests arrive, or only on a server with other backends, a GPU or
# a smaller machine.
ObservableOn = Literal["load", "traffic", "elsewhere"]
Check = TypeVar("Check", bound=Callable[..., Iterator[Hit]])

_WHOLE_REPOSITORY = ("repository",)
MODEL_REFUSED = "Triton refuses the model."
ENSEMBLE_REFUSED = "Triton refuses the ensemble."


# The checker's records are named tuples: creating a dataclass takes ten times as long, and start-up
# dominates the time to check one model.
class Rule(NamedTuple):
    """A rule about the files of a repository."""

    id: str
    name: str
    severity: Severity
    summary: str  # a noun phrase
    reason: str  # the consequence of the mistake
    check: Callable[..., Iterator[Hit]]
    input_names: tuple[str, ...]
    family: str  # the package of the rule's module
    observable_on: ObservableOn = (
        "load"  # "load": a server refuses the bad example if and only if this is an error
    )
    user_reports: tuple[str, ...] = ()  # user reports of the mistake, such as "server#7462"
    # The rule is silent while a value of config.pbtxt is unreadable: one mistake is one finding.
    needs_valid_config: bool = False
    # The rule itself reports unreadable values, so its hits do not depend on stand-ins for them.
    reports_unread_values: bool = False

    @property
    def bad_example(self) -> Example:
        """A small repository with the mistake in its model `m`."""
        return examples_of(self.family, self.id).bad

    @property
    def good_example(self) -> Example:
        """The same repository without the mistake."""
        return examples_of(self.family, self.id).good

    @property
    def target(self) -> CheckTarget:
        """The target server of the examples."""
        return examples_of(self.family, self.id).target

    def find(self, repository: Repository) -> Iterator[tuple[Model, Hit]]:
        """Yield the hits in a repository, each with its model."""
        if self.input_names == _WHOLE_REPOSITORY:
            for hit in self.check(repository):
                yield hit.model or repository.folder(), hit
            return
        for model in repository.models.values():
            for hit in self.find_in_model(model, repository):
                yield model, hit

    def find_in_model(self, model: Model, repository: Repository) -> Iterator[Hit]:
        """Yield the hits in one model; none if the rule is about all models together."""
        if self.input_names == _WHOLE_REPOSITORY or (
            self.needs_valid_config and not model.config_is_valid
        ):
            return
        subjects = [RULE_INPUTS[name](model, repository) for name in self.input_names]
        if all(subject is not None for subject in subjects):
            yield from self.check(*subjects)


_rules: dict[str, Rule] = {}


def _rule(
    severity: Severity,
    title: str,
    *,
    summary: str,
    reason: str = MODEL_REFUSED,
    shows: ObservableOn = "load",
    answers: tuple[str, ...] = (),
    needs_valid_config: bool = False,
    reports_unread_values: bool = False,
) -> Callable[[Check], Check]:
    """Return a decorator that makes a function a rule.

    `title` holds the id and name. The package of the function's module is the rule's family.
    """
    rule_id, name = title.split()

    def register(check: Check) -> Check:
        code = cast("FunctionType", check).__code__
        takes = tuple(name.lstrip("_") for name in code.co_varnames[: code.co_argcount])
        if rule_id in _rules or not set(takes) <= set(RULE_INPUTS):
            raise TypeError(f"{rule_id} is defined twice, or has an unknown input: {takes}")
        family = check.__module__.split(".")[-2]
        _rules[rule_id] = Rule(
            *(rule_id, name, severity, summary, reason, check, takes, family),
            observable_on=shows,
            user_reports=answers,
            needs_valid_config=needs_valid_config,
            reports_unread_values=reports_unread_values,
        )
        return check

    return register


error = partial(_rule, "error")
warning = partial(_rule, "warning")
advice = partial(_rule, "advice")


def rules_by_id() -> dict[str, Rule]:
    """Return the rules of all imported modules in the order of their ids."""
    return dict(sorted(_rules.items()))

# SPDX-License-Identifier: Apache-2.0
"""A scenario and what the command line says against it → the load plan of the generators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tritonctl.errors import UsageError, choices
from tritonctl.loadtest.run.plan_schema import SCHEMA
from tritonctl.project.base import Slo
from tritonctl.project.scenario import (
    DEFAULT_SECONDS,
    Closed,
    Distribution,
    Poisson,
    RequestClass,
    Scenario,
    Steps,
    Trace,
)
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint

# Gentle to a model that nobody knows, and long enough for a verdict about P99: 600 requests.
_IMPLIED_RATE, _IMPLIED_SECONDS = 5.0, 120.0


@dataclass(frozen=True)
class Overrides:
    """What replaces parts of the scenario; None leaves them."""

    model: str | None = None
    rate: float | None = None
    concurrency: int | None = None
    duration_seconds: float | None = None
    count: int | None = None
    seed: int | None = None
    workers: int | None = None

    def applied(self, scenario: Scenario) -> Scenario:
        """The scenario with the replacements. Raises UsageError for what excludes each other."""
        self._refuse_contradictions()
        for option, value in (("--rate", self.rate), ("--duration", self.duration_seconds)):
            if value is not None and not 0 < value < inf:
                raise UsageError(f"{option} {value:g}", remedy="give a number above 0")
        changes: dict[str, Any] = {
            name: value
            for name in ("model", "seed", "workers")
            if (value := getattr(self, name)) is not None
        }
        if self.duration_seconds is not None or self.count is not None:
            changes |= {"duration_seconds": self.duration_seconds, "count": self.count}
        if self.concurrency is not None:
            changes["arrivals"] = _closed(scenario, self.concurrency)
        if self.rate is not None:
            changes["arrivals"] = _of_rate(scenario, self.rate)
        return scenario.model_copy(update=changes)

    def _refuse_contradictions(self) -> None:
        for one, other in (("rate", "concurrency"), ("duration_seconds", "count")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                names = [f"--{name.partition('_')[0]}" for name in (one, other)]
                raise UsageError(
                    f"{' and '.join(names)} exclude each other", remedy="keep one of them"
                )


def _closed(scenario: Scenario, concurrency: int) -> Closed:
    think = scenario.arrivals.think_seconds if isinstance(scenario.arrivals, Closed) else 0
    return Closed(process="closed", concurrency=concurrency, think_seconds=think)


def _of_rate(scenario: Scenario, rate: float) -> Any:
    """The scenario's own process at another rate; Poisson where it has not one rate."""
    if "rate" in type(scenario.arrivals).model_fields:
        return scenario.arrivals.model_copy(update={"rate": rate})
    return Poisson(process="poisson", rate=rate)


def scenarios(project: Project) -> dict[str, Scenario]:
    """The project's scenarios; where it has none, one per model that has prompts to evaluate."""
    if project.loadtests:
        return dict(project.loadtests)
    return {
        name: Scenario(
            model=name,
            requests=[
                RequestClass(
                    prompts=model.evaluation.prompts, max_tokens=float(model.evaluation.max_tokens)
                )
            ],
            arrivals=Poisson(process="poisson", rate=_IMPLIED_RATE),
            duration_seconds=_IMPLIED_SECONDS,
        )
        for name, model in project.models.items()
        if model.task == "text_generation" and model.evaluation is not None
    }


def chosen_scenario(project: Project, name: str | None) -> tuple[str, Scenario]:
    """The scenario of that name, or the only one. Raises UsageError."""
    known = scenarios(project)
    if name is None and len(known) == 1:
        return next(iter(known.items()))
    if name in known:
        return name, known[name]
    if not known:
        raise UsageError(
            "the project has no load test",
            remedy="add `loadtests:` to tritonctl.yaml (`tritonctl init` shows one), or "
            "`evaluation.prompts` to a model",
        )
    problem = "which load test?" if name is None else f"the project has no load test `{name}`"
    raise UsageError(problem, remedy=choices(name or "", sorted(known), "name one of:"))


def slo_of(project: Project, scenario: Scenario) -> Slo:
    """The scenario's own SLO, or that of its model; an empty one where neither has any."""
    if scenario.slo is not None:
        return scenario.slo
    model = project.models.get(scenario.model)
    return model.slo if model is not None else Slo()


def load_plan(root: Path, scenario: Scenario, server: Endpoint) -> dict[str, Any]:
    """What the generators read; relative paths of the scenario start at `root`.

    Certificates and API keys appear as paths, never with their content.
    """
    endpoint: dict[str, Any] = {"protocol": scenario.protocol, "url": server.url}
    if server.tls is not None:
        endpoint["tls"] = server.tls.to_record()
    if server.api_key is not None:
        endpoint["api_key_file"] = str(Path(server.api_key.file).absolute())
    return {
        "schema": SCHEMA,
        "endpoint": endpoint,
        "model": scenario.model,
        "kind": scenario.kind,
        "classes": [_plain(request, root) for request in scenario.requests],
        "arrivals": _plain(scenario.arrivals, root),
        "duration_seconds": _plain(_duration(scenario), root),
        "count": scenario.count,
        "seed": scenario.seed,
        "timeout_seconds": _plain(scenario.timeout_seconds, root),
        "cool_down_seconds": _plain(scenario.cool_down_seconds, root),
        "users": scenario.users and scenario.users.model_dump(),
        "resumes": scenario.resumes,
        "started_at": None,
    }


def _duration(scenario: Scenario) -> float | None:
    """Of the schedule; None where it ends by count or with its trace."""
    arrivals = scenario.arrivals
    if scenario.duration_seconds is not None or scenario.count is not None:
        return scenario.duration_seconds
    if isinstance(arrivals, Steps):
        return sum(step.seconds for step in arrivals.steps)
    return None if isinstance(arrivals, Trace) else DEFAULT_SECONDS


def expected_seconds(plan: dict[str, Any]) -> float | None:
    """How long its schedule is, where that is known beforehand."""
    arrivals = plan["arrivals"]
    if plan.get("duration_seconds") is not None:
        return float(plan["duration_seconds"])
    if plan.get("count") is not None and "rate" in arrivals:
        return float(plan["count"] / arrivals["rate"])
    return None


def described(plan: dict[str, Any]) -> str:
    """Arrivals and length in a few words: `poisson 20/s, 30 s`."""
    arrivals = plan["arrivals"]
    words = arrivals["process"]
    if "rate" in arrivals:
        words += f" {arrivals['rate']:g}/s"
    if "concurrency" in arrivals:
        words += f", {arrivals['concurrency']} users"
    if plan.get("count") is not None:
        return f"{words}, {plan['count']} requests"
    seconds = plan.get("duration_seconds")
    return words if seconds is None else f"{words}, {seconds:g} s"


def _plain(value: Any, root: Path) -> Any:
    """As JSON: paths absolute, whole numbers without a fraction, models without what is unset."""
    if isinstance(value, Path):
        return str((root / value.expanduser()).resolve())
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [_plain(item, root) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, root) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return dict(_fields(value, root))
    return value


def _fields(model: BaseModel, root: Path) -> Iterable[tuple[str, Any]]:
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if name == "parameters":
            yield name, value  # tensors: 1.0 is no 1
        elif value is not None or not isinstance(model, Distribution):
            yield info.alias or name, _plain(value, root)

# SPDX-License-Identifier: Apache-2.0
"""Build the generators' load plan from a scenario and command-line overrides."""

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

# Gentle to an unknown model, and long enough for a verdict about P99: 600 requests.
_IMPLIED_RATE, _IMPLIED_SECONDS = 5.0, 120.0


@dataclass(frozen=True)
class Overrides:
    """Values that replace parts of the scenario; None keeps the scenario's."""

    model: str | None = None
    rate: float | None = None
    concurrency: int | None = None
    duration_seconds: float | None = None
    count: int | None = None
    seed: int | None = None
    workers: int | None = None

    def apply_to(self, scenario: Scenario) -> Scenario:
        """Return the scenario with the overrides. Raises UsageError for conflicting ones."""
        self._reject_conflicts()
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
            changes["arrivals"] = _closed_loop(scenario, self.concurrency)
        if self.rate is not None:
            changes["arrivals"] = _arrivals_at_rate(scenario, self.rate)
        return scenario.model_copy(update=changes)

    def _reject_conflicts(self) -> None:
        for first_field, second_field in (("rate", "concurrency"), ("duration_seconds", "count")):
            if getattr(self, first_field) is not None and getattr(self, second_field) is not None:
                names = [f"--{name.partition('_')[0]}" for name in (first_field, second_field)]
                raise UsageError(
                    f"{' and '.join(names)} exclude each other", remedy="drop one of the two"
                )


def _closed_loop(scenario: Scenario, concurrency: int) -> Closed:
    think = scenario.arrivals.think_seconds if isinstance(scenario.arrivals, Closed) else 0
    return Closed(process="closed", concurrency=concurrency, think_seconds=think)


def _arrivals_at_rate(scenario: Scenario, rate: float) -> Any:
    """Return the scenario's arrival process at another rate; Poisson if it has no single rate."""
    if "rate" in type(scenario.arrivals).model_fields:
        return scenario.arrivals.model_copy(update={"rate": rate})
    return Poisson(process="poisson", rate=rate)


def scenarios(project: Project) -> dict[str, Scenario]:
    """Return the project's scenarios; without any, one per model with evaluation prompts."""
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


def select_scenario(project: Project, name: str | None) -> tuple[str, Scenario]:
    """Return the named scenario, or the only one. Raises UsageError."""
    available = scenarios(project)
    if name is None and len(available) == 1:
        return next(iter(available.items()))
    if name in available:
        return name, available[name]
    if not available:
        raise UsageError(
            "the project has no load test",
            remedy="add `loadtests:` to tritonctl.yaml (see `tritonctl init`), or "
            "`evaluation.prompts` to a model",
        )
    problem = "which load test?" if name is None else f"the project has no load test `{name}`"
    raise UsageError(problem, remedy=choices(name or "", sorted(available), "name one of:"))


def effective_slo(project: Project, scenario: Scenario) -> Slo:
    """Return the scenario's SLO, else its model's, else an empty one."""
    if scenario.slo is not None:
        return scenario.slo
    model = project.models.get(scenario.model)
    return model.slo if model is not None else Slo()


def build_load_plan(root: Path, scenario: Scenario, server: Endpoint) -> dict[str, Any]:
    """Return the plan for the generators; the scenario's relative paths start at `root`.

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
        "classes": [_to_json_value(request, root) for request in scenario.requests],
        "arrivals": _to_json_value(scenario.arrivals, root),
        "duration_seconds": _to_json_value(_schedule_seconds(scenario), root),
        "count": scenario.count,
        "seed": scenario.seed,
        "timeout_seconds": _to_json_value(scenario.timeout_seconds, root),
        "cool_down_seconds": _to_json_value(scenario.cool_down_seconds, root),
        "users": scenario.users and scenario.users.model_dump(),
        "resumes": scenario.resumes,
        "started_at": None,
    }


def _schedule_seconds(scenario: Scenario) -> float | None:
    """Return the schedule's length; None if it ends by count or with its trace."""
    arrivals = scenario.arrivals
    if scenario.duration_seconds is not None or scenario.count is not None:
        return scenario.duration_seconds
    if isinstance(arrivals, Steps):
        return sum(step.seconds for step in arrivals.steps)
    return None if isinstance(arrivals, Trace) else DEFAULT_SECONDS


def expected_seconds(plan: dict[str, Any]) -> float | None:
    """Return the schedule's length in seconds, or None if unknown in advance."""
    arrivals = plan["arrivals"]
    if plan.get("duration_seconds") is not None:
        return float(plan["duration_seconds"])
    if plan.get("count") is not None and "rate" in arrivals:
        return float(plan["count"] / arrivals["rate"])
    return None


def describe_load(plan: dict[str, Any]) -> str:
    """Describe arrivals and length: `poisson 20/s, 30 s`."""
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


def _to_json_value(value: Any, root: Path) -> Any:
    """Convert to JSON: absolute paths, whole numbers as int, models without unset fields."""
    if isinstance(value, Path):
        return str((root / value.expanduser()).resolve())
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [_to_json_value(item, root) for item in value]
    if isinstance(value, dict):
        return {key: _to_json_value(item, root) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return dict(_json_fields(value, root))
    return value


def _json_fields(model: BaseModel, root: Path) -> Iterable[tuple[str, Any]]:
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if name == "parameters":
            yield name, value  # tensors distinguish 1.0 from 1
        elif value is not None or not isinstance(model, Distribution):
            yield info.alias or name, _to_json_value(value, root)

# SPDX-License-Identifier: Apache-2.0
"""Read and validate the load plan, "tritonctl/loadplan/v1"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadlib.arrivals import TraceReplay, has_end, parse_arrivals
from loadlib.distributions import parse_distribution
from loadlib.plan_types import (
    CancelRule,
    ClientTlsFiles,
    GeneratorEndpoint,
    GeneratorPlan,
    PlanRequestClass,
    TraceArrival,
    UserHeaders,
)
from loadlib.refusal import RunRefusedError
from loadlib.schema import field_error, suggest, validate_object
from loadlib.tls import check_tls

_TEXT_ONLY = ("max_tokens", "input_tokens", "turns", "cancel")
_DISTRIBUTIONS = ("max_tokens", "input_tokens", "turns", "think_seconds")


def read_plan(path: Path | None) -> GeneratorPlan:
    """Read a plan from a file, or the first line of standard input. Raises RunRefusedError."""
    return parse_plan(read_content(path))


def read_content(path: Path | None) -> Any:
    """Read the plan's JSON without validation. Raises RunRefusedError."""
    try:
        if path is not None:
            return json.loads(path.read_text(encoding="utf-8"))
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            return json.loads(stdin.readline())
    except OSError as error:
        raise RunRefusedError(
            f"cannot read the plan {path}: {error.strerror}", remedy="check --plan"
        ) from error
    except ValueError as error:
        raise RunRefusedError(
            f"{path or 'the plan'} is not JSON: {error}", remedy="write JSON"
        ) from error


def parse_plan(content: Any) -> GeneratorPlan:
    """Parse and validate a plan. Raises RunRefusedError."""
    fields = validate_object("LoadPlan", content, "plan")
    del fields["schema"]
    seconds, count = fields["duration_seconds"], fields["count"]
    if seconds is not None and count is not None:
        raise field_error("plan.count", "duration_seconds and count exclude each other", "drop one")
    arrivals = parse_arrivals(fields["arrivals"], seconds)
    if seconds is None and count is None and not has_end(arrivals):
        raise field_error("plan", "it never ends", "set duration_seconds or count")
    plan = GeneratorPlan(
        **fields
        | {
            "endpoint": _parse_endpoint(fields["endpoint"]),
            "classes": _parse_classes(fields["classes"], fields["kind"]),
            "arrivals": arrivals,
            "users": fields["users"] and UserHeaders(**fields["users"]),
        }
    )
    _check_combinations(plan)
    return plan


def _parse_endpoint(fields: dict[str, Any]) -> GeneratorEndpoint:
    tls = fields["tls"] and ClientTlsFiles(**fields["tls"])
    endpoint = GeneratorEndpoint(**fields | {"url": _url(fields["url"]), "tls": tls})
    check_tls(endpoint)
    return endpoint


def _url(text: str) -> str:
    """Return host:port, without a leading http://."""
    url = text.removeprefix("http://").rstrip("/")
    host, _, port = url.rpartition(":")
    if not host or not port.isdigit():
        raise field_error(
            "endpoint.url", f"{text!r} is not HOST:PORT", "use one like 127.0.0.1:8001"
        )
    return url


def _parse_classes(contents: list[dict[str, Any]], kind: str) -> tuple[PlanRequestClass, ...]:
    names = [class_fields["name"] for class_fields in contents]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise field_error(
                f"classes[{number}].name", f"two classes are called {name!r}", "rename"
            )
    return tuple(
        _parse_class(class_fields, f"classes[{number}]", kind)
        for number, class_fields in enumerate(contents)
    )


def _parse_class(fields: dict[str, Any], location: str, kind: str) -> PlanRequestClass:
    if kind == "tensors":
        for name in _TEXT_ONLY:
            if fields[name] is not None:
                raise field_error(f"{location}.{name}", "only for kind text", f"drop {name}")
    for name in _DISTRIBUTIONS:
        if fields[name] is not None:
            fields[name] = parse_distribution(fields[name], f"{location}.{name}")
    cancel = fields["cancel"] and CancelRule(**fields["cancel"])
    return PlanRequestClass(**fields | {"cancel": cancel})


def _check_combinations(plan: GeneratorPlan) -> None:
    """Check fields of the plan that depend on each other."""
    if plan.resumes and (plan.kind != "text" or plan.endpoint.protocol != "grpc"):
        raise field_error("plan.resumes", "only for kind text over protocol grpc", "drop resumes")
    names = [request_class.name for request_class in plan.classes]
    for number, request_class in enumerate(plan.classes):
        _check_class(plan, request_class, f"classes[{number}]")
    for number, entry in enumerate(_trace_entries(plan), 1):
        location = f"arrivals.file, arrival {number}"
        if entry.class_ is not None and entry.class_ not in names:
            problem = f"unknown: {entry.class_!r}"
            raise field_error(f"{location}: class", problem, suggest(entry.class_, names))
        if plan.kind == "tensors" and (entry.max_tokens or entry.text_input is not None):
            raise field_error(
                location, "text where kind is tensors", "drop max_tokens and text_input"
            )


def _trace_entries(plan: GeneratorPlan) -> tuple[TraceArrival, ...]:
    return plan.arrivals.entries if isinstance(plan.arrivals, TraceReplay) else ()


def _check_class(plan: GeneratorPlan, request_class: PlanRequestClass, location: str) -> None:
    entries = _trace_entries(plan)
    # A trace line brings the text of the first turn only.
    brings_text = request_class.turns is None and all(
        entry.text_input is not None for entry in entries
    )
    if request_class.prompts is None and not (entries and brings_text):
        raise field_error(f"{location}.prompts", "missing", "name a file of prompts")
    if (
        request_class.priority is not None
        and plan.endpoint.protocol == "http"
        and plan.kind == "text"
    ):
        raise field_error(
            f"{location}.priority",
            "Triton's generate endpoints ignore priorities",
            "drop priority, or set endpoint.protocol to grpc",
        )

# SPDX-License-Identifier: Apache-2.0
"""The load plan, "tritonctl/loadplan/v1": what the host asks for, read and checked.

Every complaint names the field and, where a name is wrong, the nearest valid one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadlib.arrivals import Arrivals, Trace, has_end, parse_arrivals
from loadlib.distributions import Distribution, parse
from loadlib.fields import Fields, nearest, refused
from loadlib.refusal import Refusal
from loadlib.tls import Tls, parse_tls
from loadlib.trace import TraceEntry

SCHEMA = "tritonctl/loadplan/v1"
_FIELDS = (
    "schema",
    "endpoint",
    "model",
    "kind",
    "classes",
    "arrivals",
    "duration_seconds",
    "count",
    "seed",
    "timeout_seconds",
    "cool_down_seconds",
    "started_at",
)
_CLASS_FIELDS = (
    "name",
    "weight",
    "prompts",
    "order",
    "max_tokens",
    "input_tokens",
    "parameters",
    "stream",
    "priority",
    "cancel",
    "turns",
    "think_seconds",
)
_MOST_PRIORITY = 2**32 - 1


@dataclass(frozen=True)
class Cancel:
    """A share of the requests is cancelled, after so many tokens or milliseconds."""

    share: float
    after_tokens: int | None
    after_ms: float | None


@dataclass(frozen=True)
class RequestClass:
    """One kind of request of a mix."""

    name: str
    weight: float
    prompts: Path | None
    order: str
    max_tokens: Distribution | None
    input_tokens: Distribution | None
    parameters: dict[str, Any]
    stream: bool
    priority: int | None
    cancel: Cancel | None
    turns: Distribution | None
    think_seconds: Distribution | None


@dataclass(frozen=True)
class Plan:
    """A checked load plan."""

    protocol: str
    url: str
    tls: Tls | None
    api_key_file: Path | None
    model: str
    kind: str
    classes: tuple[RequestClass, ...]
    arrivals: Arrivals
    duration_seconds: float | None
    count: int | None
    seed: int
    timeout_seconds: float
    cool_down_seconds: float
    started_at: float | None


def read_plan(path: Path | None) -> Plan:
    """The plan in a file, or in the first line of standard input; Refusal for a bad one."""
    return parse_plan(read_content(path))


def read_content(path: Path | None) -> Any:
    """Its JSON, not checked yet. Refusal."""
    try:
        if path is not None:
            return json.loads(path.read_text(encoding="utf-8"))
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            return json.loads(stdin.readline())
    except OSError as error:
        raise Refusal(
            f"cannot read the plan {path}: {error.strerror}", remedy="check --plan"
        ) from error
    except ValueError as error:
        raise Refusal(f"{path or 'the plan'} is not JSON: {error}", remedy="write JSON") from error


def parse_plan(content: Any) -> Plan:
    """A plan out of its JSON; Refusal where something is wrong."""
    fields = Fields(content, "plan", _FIELDS)
    fields.text("schema", choices=(SCHEMA,))
    endpoint = Fields(
        fields.value("endpoint"), "endpoint", ("protocol", "url", "tls", "api_key_file")
    )
    kind = fields.text("kind", "text", ("text", "tensors"))
    seconds, count = _extent(fields)
    arrivals = parse_arrivals(fields.value("arrivals"), "arrivals", seconds)
    if seconds is None and count is None and not has_end(arrivals):
        raise refused("plan", "it has no end", "set duration_seconds or count")
    plan = Plan(
        protocol=endpoint.text("protocol", "grpc", ("grpc", "http")),
        url=_url(endpoint.text("url")),
        tls=parse_tls(endpoint),
        api_key_file=_path(endpoint, "api_key_file"),
        model=fields.text("model"),
        kind=kind,
        classes=_classes(fields.items("classes"), kind),
        arrivals=arrivals,
        duration_seconds=seconds,
        count=count,
        seed=fields.whole("seed", 1),
        timeout_seconds=fields.number("timeout_seconds", 60.0, above=0),
        cool_down_seconds=fields.number("cool_down_seconds", 30.0),
        started_at=fields.number("started_at") if "started_at" in fields else None,
    )
    _check_together(plan)
    return plan


def _extent(fields: Fields) -> tuple[float | None, int | None]:
    if "duration_seconds" in fields and "count" in fields:
        raise refused("plan.count", "duration_seconds is there, too", "set one of them")
    seconds = fields.number("duration_seconds", above=0) if "duration_seconds" in fields else None
    return seconds, fields.whole("count", least=1) if "count" in fields else None


def _path(fields: Fields, name: str) -> Path | None:
    return Path(fields.text(name)) if name in fields else None


def _url(text: str) -> str:
    """host:port, also where somebody wrote http:// before it."""
    url = text.removeprefix("http://").rstrip("/")
    host, _, port = url.rpartition(":")
    if not host or not port.isdigit():
        raise refused("endpoint.url", f"{text!r} is no HOST:PORT", "give one, as 127.0.0.1:8001")
    return url


def _classes(contents: list[Any], kind: str) -> tuple[RequestClass, ...]:
    classes = tuple(_class(item, f"classes[{n}]", kind) for n, item in enumerate(contents))
    names = [one.name for one in classes]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise refused(f"classes[{number}].name", f"{name!r} is there twice", "rename one")
    if not sum(one.weight for one in classes):
        raise refused("classes", "all weights are 0", "let one be above 0")
    return classes


def _class(content: Any, where: str, kind: str) -> RequestClass:
    fields = Fields(content, where, _CLASS_FIELDS)
    turns = _distribution(fields, "turns")
    if kind == "tensors":
        for name in ("max_tokens", "input_tokens", "turns", "cancel"):
            if name in fields:
                raise refused(fields.at(name), "only for kind text", f"leave {name} out")
    return RequestClass(
        name=fields.text("name"),
        weight=fields.number("weight", 1.0),
        prompts=_path(fields, "prompts"),
        order=fields.text("order", "shuffled", ("shuffled", "sequential", "random")),
        max_tokens=_distribution(fields, "max_tokens"),
        input_tokens=_distribution(fields, "input_tokens"),
        parameters=_parameters(fields),
        stream=fields.flag("stream", True),
        priority=_priority(fields),
        cancel=_cancel(fields.value("cancel"), fields.at("cancel")) if "cancel" in fields else None,
        turns=turns,
        think_seconds=_distribution(fields, "think_seconds"),
    )


def _distribution(fields: Fields, name: str) -> Distribution | None:
    return parse(fields.value(name), fields.at(name)) if name in fields else None


def _parameters(fields: Fields) -> dict[str, Any]:
    parameters = fields.value("parameters", {})
    if not isinstance(parameters, dict):
        raise refused(fields.at("parameters"), "no object", "give tensors by name")
    return {name: value for name, value in parameters.items() if value is not None}


def _priority(fields: Fields) -> int | None:
    if "priority" not in fields:
        return None
    priority = fields.whole("priority", least=1)
    if priority > _MOST_PRIORITY:
        raise refused(fields.at("priority"), f"{priority} is too large", "1 goes first")
    return priority


def _cancel(content: Any, where: str) -> Cancel:
    fields = Fields(content, where, ("share", "after_tokens", "after_ms"))
    share = fields.number("share", 1.0)
    if share > 1:
        raise refused(fields.at("share"), f"{share:g} is more than all", "give 0 to 1")
    tokens = fields.whole("after_tokens", least=1) if "after_tokens" in fields else None
    after_ms = fields.number("after_ms") if "after_ms" in fields else None
    if (tokens is None) == (after_ms is None):
        raise refused(where, "cancel when?", "give after_tokens or after_ms, one of them")
    return Cancel(share, tokens, after_ms)


def _check_together(plan: Plan) -> None:
    """What only shows when the whole plan is there."""
    names = [one.name for one in plan.classes]
    for number, one in enumerate(plan.classes):
        _check_class(plan, one, f"classes[{number}]")
    for number, entry in enumerate(_entries(plan), 1):
        where = f"arrivals.file, arrival {number}"
        if entry.class_name is not None and entry.class_name not in names:
            unknown = f"unknown: {entry.class_name!r}"
            raise refused(f"{where}: class", unknown, nearest(entry.class_name, names))
        if plan.kind == "tensors" and (entry.max_tokens or entry.text_input is not None):
            raise refused(where, "it has text, kind is tensors", "leave max_tokens, text_input out")


def _entries(plan: Plan) -> tuple[TraceEntry, ...]:
    return plan.arrivals.entries if isinstance(plan.arrivals, Trace) else ()


def _check_class(plan: Plan, one: RequestClass, where: str) -> None:
    entries = _entries(plan)
    # The text of a line is the first turn's.
    brings_text = one.turns is None and all(entry.text_input is not None for entry in entries)
    if one.prompts is None and not (entries and brings_text):
        raise refused(f"{where}.prompts", "missing", "name a file of prompts")
    if one.priority is not None and plan.protocol == "http" and plan.kind == "text":
        raise refused(
            f"{where}.priority",
            "Triton's generate endpoints know no priority and would ignore it",
            "leave it out, or set endpoint.protocol to grpc",
        )

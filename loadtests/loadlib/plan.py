# SPDX-License-Identifier: Apache-2.0
"""The load plan, "tritonctl/loadplan/v1": what the host asks for, read and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from loadlib.arrivals import Arrivals, Trace, has_end, parse_arrivals
from loadlib.distributions import Distribution, parse
from loadlib.refusal import Refusal
from loadlib.schema import checked, nearest, refused
from loadlib.tls import Tls, parse_tls
from loadlib.trace import TraceEntry

_AS_THEY_ARE = (
    "model",
    "kind",
    "duration_seconds",
    "count",
    "seed",
    "timeout_seconds",
    "cool_down_seconds",
    "started_at",
    "resumes",
)
_TEXT_ONLY = ("max_tokens", "input_tokens", "turns", "cancel")
_DISTRIBUTIONS = ("max_tokens", "input_tokens", "turns", "think_seconds")


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
class Users:
    """Each request is one of so many users', told in a header."""

    header: str
    count: int

    def of(self, seed: int, index: int) -> str:
        """The user of a request; the same for all turns of a conversation."""
        return f"user-{Random(f'{seed}:user:{index}').randrange(self.count)}"


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
    resumes: int = 0
    users: Users | None = None


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
    fields = checked("LoadPlan", content, "plan")
    endpoint, kind = fields["endpoint"], fields["kind"]
    seconds, count = fields["duration_seconds"], fields["count"]
    if seconds is not None and count is not None:
        raise refused("plan.count", "duration_seconds and count exclude each other", "set one")
    arrivals = parse_arrivals(fields["arrivals"], seconds)
    if seconds is None and count is None and not has_end(arrivals):
        raise refused("plan", "it never ends", "set duration_seconds or count")
    plan = Plan(
        protocol=endpoint["protocol"],
        url=_url(endpoint["url"]),
        tls=parse_tls(endpoint),
        api_key_file=_path(endpoint["api_key_file"]),
        classes=_classes(fields["classes"], kind),
        arrivals=arrivals,
        users=fields["users"] and Users(**fields["users"]),
        **{name: fields[name] for name in _AS_THEY_ARE},
    )
    _check_together(plan)
    return plan


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _url(text: str) -> str:
    """host:port, also where somebody wrote http:// before it."""
    url = text.removeprefix("http://").rstrip("/")
    host, _, port = url.rpartition(":")
    if not host or not port.isdigit():
        raise refused("endpoint.url", f"{text!r} is not HOST:PORT", "give one, as 127.0.0.1:8001")
    return url


def _classes(contents: list[dict[str, Any]], kind: str) -> tuple[RequestClass, ...]:
    names = [one["name"] for one in contents]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise refused(f"classes[{number}].name", f"two classes are called {name!r}", "rename")
    return tuple(_class(one, f"classes[{number}]", kind) for number, one in enumerate(contents))


def _class(fields: dict[str, Any], where: str, kind: str) -> RequestClass:
    if kind == "tensors":
        for name in _TEXT_ONLY:
            if fields[name] is not None:
                raise refused(f"{where}.{name}", "only for kind text", f"leave {name} out")
    for name in _DISTRIBUTIONS:
        if fields[name] is not None:
            fields[name] = parse(fields[name], f"{where}.{name}")
    cancel = fields["cancel"] and Cancel(**fields["cancel"])
    return RequestClass(**fields | {"cancel": cancel, "prompts": _path(fields["prompts"])})


def _check_together(plan: Plan) -> None:
    """What one part of the plan demands of another."""
    if plan.resumes and (plan.kind != "text" or plan.protocol != "grpc"):
        raise refused("plan.resumes", "only for kind text over protocol grpc", "leave it out")
    names = [one.name for one in plan.classes]
    for number, one in enumerate(plan.classes):
        _check_class(plan, one, f"classes[{number}]")
    for number, entry in enumerate(_entries(plan), 1):
        where = f"arrivals.file, arrival {number}"
        if entry.class_name is not None and entry.class_name not in names:
            unknown = f"unknown: {entry.class_name!r}"
            raise refused(f"{where}: class", unknown, nearest(entry.class_name, names))
        if plan.kind == "tensors" and (entry.max_tokens or entry.text_input is not None):
            raise refused(where, "text where kind is tensors", "leave max_tokens, text_input out")


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

# SPDX-License-Identifier: Apache-2.0
"""Locust's command line: a plan, or a few options that define one.

They are also fields of the web UI, so values may be text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadlib.arrivals import ClosedLoop
from loadlib.plan import parse_plan, read_content, read_plan
from loadlib.refusal import RunRefusedError
from loadlib.schema import SCHEMA, choices

_SECONDS = 60
_ARRIVALS = ("poisson", "constant", "gamma", "closed")


def add_arguments(parser: Any) -> None:
    """Add the options; a listener of Locust's init_command_line_parser event."""
    add = parser.add_argument_group("tritonctl load test").add_argument
    add("--plan", default="", help="load plan (JSON); without one, the options below")
    add("--output", default="", help="folder for records; progress lines go to standard output")
    add("--model", default="", help="the model to test")
    add("--prompts", default="", help="file of prompts: .txt or JSON lines")
    add("--kind", default="text", choices=choices("LoadPlan", "kind"), help="kind of requests")
    add("--protocol", default="grpc", choices=choices("PlanEndpoint", "protocol"), help="of --host")
    add("--arrivals", default="poisson", choices=_ARRIVALS, help="closed: --users is concurrency")
    add("--rate", default="5", help="arrivals per second, over all workers [default: 5]")
    add("--cv", default="2", help="of gamma arrivals' gaps [default: 2]")
    add("--max-tokens", default="", help="of an answer [default: the server's choice]")
    add("--seed", default="1", help="of the schedule and the choice of prompts [default: 1]")
    help_text = "K/N: this process is worker K of N separately started ones"
    parser.add_argument("--share", default="", include_in_web_ui=False, help=help_text)


def plan_content(options: Any, users: int | None) -> dict[str, Any]:
    """Return the validated plan as JSON. Raises RunRefusedError if it is invalid or missing."""
    if not options.plan:
        content = _from_options(options, users)
    else:
        content = read_content(Path(options.plan))
        if options.host and isinstance(content.get("endpoint"), dict):
            content["endpoint"]["url"] = options.host
    parse_plan(content)
    return content


def _from_options(options: Any, users: int | None) -> dict[str, Any]:
    for name in ("model", "prompts", "host"):
        if not getattr(options, name):
            raise RunRefusedError(
                f"give --plan, or --{name}",
                remedy="locust -f locustfile.py --host 127.0.0.1:8001 --model MODEL --prompts FILE",
            )
    request_class = {"name": options.model, "prompts": options.prompts}
    if options.max_tokens:
        request_class["max_tokens"] = _number("--max-tokens", options.max_tokens)
    return {
        "schema": SCHEMA,
        "endpoint": {"protocol": options.protocol, "url": options.host},
        "model": options.model,
        "kind": options.kind,
        "classes": [request_class],
        "arrivals": _arrivals(options, users),
        "duration_seconds": options.run_time or options.plan_seconds or _SECONDS,
        "seed": _number("--seed", options.seed),
    }


def _arrivals(options: Any, users: int | None) -> dict[str, Any]:
    if options.arrivals == "closed":
        return {"process": "closed", "concurrency": users or 1}
    arrivals = {"process": options.arrivals, "rate": _number("--rate", options.rate)}
    if options.arrivals == "gamma":
        arrivals["cv"] = _number("--cv", options.cv)
    return arrivals


def share_of(options: Any) -> tuple[int, int]:
    """Return this process's worker number and the number of workers. Raises RunRefusedError."""
    if not options.share:
        return 0, 1
    worker, _, workers = options.share.partition("/")
    if worker.isdigit() and workers.isdigit() and int(worker) < int(workers):
        return int(worker), int(workers)
    raise RunRefusedError(
        f"--share {options.share} is not K/N", remedy="use a value like 0/2 or 1/2"
    )


def _number(option: str, text: Any) -> float | int:
    try:
        number = float(text)
    except ValueError:
        raise RunRefusedError(
            f"{option} {text} is not a number", remedy=f"give {option} a number"
        ) from None
    return int(number) if number.is_integer() else number


def default_users(options: Any) -> None:
    """Set default users: a closed loop's concurrency, or one per worker."""
    users = max(1, int(options.expect_workers)) if options.master else 1
    if options.plan and not options.num_users:
        users = _planned_users(options) or users
    options.num_users = options.num_users or users
    options.spawn_rate = options.spawn_rate or options.num_users
    options.plan_seconds = None
    if not options.plan:
        # The duration of the plan ends the run; Locust's run_time would interrupt it.
        options.plan_seconds, options.run_time = options.run_time, None


def _planned_users(options: Any) -> int | None:
    """Return this process's users in a closed loop; None for an open loop or invalid plan."""
    try:
        arrivals = read_plan(Path(options.plan)).arrivals
        worker, workers = share_of(options)
    except RunRefusedError:
        return None
    return arrivals.worker_users(worker, workers) if isinstance(arrivals, ClosedLoop) else None

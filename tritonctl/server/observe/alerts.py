# SPDX-License-Identifier: Apache-2.0
"""Alert rules: what needs somebody's attention, each with a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.frontend import metrics as frontend
from tritonctl.project.schema import Project
from tritonctl.repository.engine_queue import policy_of, triton_decides
from tritonctl.repository.ensembles import ENGINE_STEP
from tritonctl.server.observe.prometheus import FRONTEND_JOB, GATEWAY_JOB, JOB, MODEL
from tritonctl.server.observe.recording import (
    RANGE,
    VERSION_FAILURES,
    VERSION_TTFT,
    Group,
    Rule,
)
from tritonctl.server.observe.slo import BURNS, RATIO, Burn, Objective, objectives

KV_FULL = 0.95
_PAGE, _TICKET = "page", "ticket"


def alert_groups(project: Project) -> list[Group]:
    """Alerts for symptoms of servers and models, and for the SLO where there is one."""
    groups: list[Group] = [
        {"name": "tritonctl-servers", "rules": list(_servers(project))},
        {"name": "tritonctl-models", "rules": [_stub_gone(), *_queues(project), _kv_full()]},
    ]
    groups.append({"name": "tritonctl-releases", "rules": list(_releases())})
    if project.frontend is not None:
        groups.append({"name": "tritonctl-frontend", "rules": list(_frontend())})
    burns = [
        _burn(objective, burn)
        for objective in objectives(project)
        for burn in BURNS
        if burn.factor * objective.budget < 1  # a ratio cannot exceed 1
    ]
    return groups + ([{"name": "tritonctl-budgets", "rules": burns}] if burns else [])


def _alert(
    name: str,
    expression: str,
    severity: str,
    *,
    summary: str,
    runbook: str,
    wait: str | None = None,
    **labels: str,
) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        **({"for": wait} if wait else {}),
        "labels": {"severity": severity, **labels},
        "annotations": {"summary": summary, "runbook": runbook},
    }


def _servers(project: Project) -> Iterator[Rule]:
    yield _alert(
        "TritonServerDown",
        f'up{{job="{JOB}"}} == 0',
        _PAGE,
        wait="1m",
        summary="{{ $labels.instance }} does not answer Prometheus",
        runbook="Read `tritonctl logs` (or `docker compose logs triton`), then start it with "
        "`tritonctl up`; if it runs, check that Prometheus reaches its metrics port.",
    )
    yield _alert(
        "TritonServerMissing",
        f'absent(up{{job="{JOB}"}})',
        _PAGE,
        wait="5m",
        summary="Prometheus knows no Triton server at all",
        runbook="Check with `docker compose ps` that a profile with a server is up, and on "
        "Prometheus' page Targets that the name `triton` is found.",
    )
    replicas = project.docker.replicas
    if replicas > 1:
        # A container that ended loses its address, so `up == 0` never fires for it.
        yield _alert(
            "TritonReplicaMissing",
            f'count(up{{job="{JOB}"}} == 1) < {replicas}',
            _TICKET,
            wait="2m",
            summary=f"{{{{ $value }}}} of {replicas} servers answer Prometheus",
            runbook="`docker compose ps --all` shows which one ended, `docker compose logs triton` "
            "why; `docker compose up --wait` starts it again.",
        )
    if project.gateway is not None:
        yield _alert(
            "GatewayDown",
            f'up{{job="{GATEWAY_JOB}"}} == 0',
            _PAGE,
            wait="1m",
            summary="the gateway {{ $labels.instance }} does not answer Prometheus",
            runbook="Read `docker compose logs envoy`; clients reach no server until it runs.",
        )


def _frontend() -> Iterator[Rule]:
    yield _alert(
        "FrontendDown",
        f'up{{job="{FRONTEND_JOB}"}} == 0',
        _PAGE,
        wait="1m",
        summary="the frontend {{ $labels.instance }} does not answer Prometheus",
        runbook="Read `tritonctl logs frontend` (or `docker compose logs frontend`); clients of "
        "the OpenAI API reach no model until it runs.",
    )
    failed = f'{frontend.REFUSALS}_total{{reason=~"failed|unavailable|overloaded"}}'
    yield _alert(
        "FrontendFailing",
        f"sum by (model, reason) (rate({failed}[{RANGE}])) "
        f"> 0.01 * on () group_left () sum(rate({frontend.REQUESTS}_total[{RANGE}]))",
        _TICKET,
        wait="5m",
        summary="the frontend answers {{ $value | humanize }} requests/s for {{ $labels.model }} "
        "with an error ({{ $labels.reason }})",
        runbook="overloaded: add a replica, or lower tenants' budgets; unavailable: look at "
        "TritonServerDown; failed: the reason is in `tritonctl logs frontend`.",
    )


def _releases() -> Iterator[Rule]:
    """Of two versions of a model that serve side by side: with one alone, none fires."""
    runbook = (
        "`tritonctl rollout status` says which release is the candidate and what is known of it; "
        "`tritonctl rollout abort` gives all users back to the stable one at once."
    )
    best = "min by (public_model) ({})"
    yield _alert(
        "ReleaseFailing",
        f"{VERSION_FAILURES} > on (public_model) group_left () "
        f"(0.01 + 2 * {best.format(VERSION_FAILURES)})",
        _PAGE,
        wait="1m",
        summary="version {{ $labels.version }} of {{ $labels.public_model }} fails "
        "{{ $value | humanizePercentage }} of its requests, more than twice as many as the other",
        runbook=runbook,
    )
    yield _alert(
        "ReleaseSlow",
        f"{VERSION_TTFT} > on (public_model) group_left () (1.5 * {best.format(VERSION_TTFT)})",
        _TICKET,
        wait="2m",
        summary="version {{ $labels.version }} of {{ $labels.public_model }} takes "
        "{{ $value | humanizeDuration }} to the first token (median), half as long again as the "
        "other",
        runbook=runbook,
    )


def _stub_gone() -> Rule:
    by = "instance, public_model, model, model_instance"
    return _alert(
        "TritonStubGone",
        f"sum by ({by}) (increase(tritonctl_uptime_seconds_total[1m])) == 0",
        _PAGE,
        wait="30s",
        summary="the process of {{ $labels.model_instance }} on {{ $labels.instance }} has made "
        "no progress for over a minute: it has died or hangs",
        runbook="Triton does not start it again and still calls the model ready: read in the log "
        "why it ended (the kernel's out-of-memory killer?), then restart the server.",
    )


def _queues(project: Project) -> Iterator[Rule]:
    runbook = (
        "Requests are refused or time out in the queue: add a replica or a larger "
        "engine.max_batch_size, or let clients come back later; a longer queue only makes them "
        "wait longer."
    )
    yield _alert(
        "TritonQueueFull",
        'public_model:errors:rate5m{reason=~"queue_full|REJECTED"} > 0',
        _TICKET,
        wait="2m",
        summary="{{ $labels.public_model }} turns {{ $value | humanize }} requests/s away "
        "({{ $labels.reason }})",
        runbook=runbook,
    )
    # Triton 2.51 does not count what its own queue refuses, so watch the queue's length.
    for name, model in sorted(project.models.items()):
        queue = model.serving.queue
        bound = policy_of(queue, model.engine.max_batch_size)
        size = bound.get("default_queue_policy", {}).get("max_queue_size")
        if triton_decides(queue) and size:
            steps = f"{ENGINE_STEP}|{MODEL}"
            labels = f'public_model="{name}",step=~"{steps}"'
            pending = f"nv_inference_pending_request_count{{{labels}}}"
            yield _alert(
                "TritonQueueFull",
                f"max by (public_model, instance) ({pending}) >= {size}",
                _TICKET,
                wait="2m",
                summary="{{ $labels.public_model }} on {{ $labels.instance }} has "
                "{{ $value }} requests waiting, as many as its queue holds",
                runbook=runbook,
                public_model=name,
                reason="pending",
            )


def _kv_full() -> Rule:
    return _alert(
        "TritonKvCacheFull",
        f"public_model:kv_blocks:used_ratio > {KV_FULL}",
        _TICKET,
        wait="5m",
        summary="the KV cache of {{ $labels.public_model }} is {{ $value | humanizePercentage }} "
        "full: streams wait, or are dropped",
        runbook="Raise serving.kv_cache_tokens if there is memory, lower engine.max_batch_size or "
        "max_seq_len, or add a replica.",
    )


def _burn(objective: Objective, burn: Burn) -> Rule:
    of = f'{{public_model="{objective.public_model}",slo="{objective.slo}"}}'
    threshold = burn.factor * objective.budget
    sides = [f"{RATIO.format(w)}{of} > {threshold:.6g}" for w in (burn.long, burn.short)]
    return _alert(
        "TritonErrorBudgetBurn",
        " and ".join(sides),
        burn.severity,
        summary=f"{{{{ $labels.public_model }}}} misses {objective.slo} for "
        f"{{{{ $value | humanizePercentage }}}} of its events over {burn.long}: {burn.spent}",
        runbook=_RUNBOOKS[objective.slo],
        public_model=objective.public_model,
        slo=objective.slo,
        window=burn.long,
    )


_RUNBOOKS = {
    "error_rate": "Look at the panel Failures by reason: queue_full needs capacity, BACKEND a "
    "restart, failed the engine's log (`tritonctl logs`).",
    "ttft_p99_ms": "Look at waiting streams and at the queue's share: long queues need a replica, "
    "long prompts max_num_tokens, and `tritonctl tune` finds the settings.",
    "itl_p99_ms": "Look at active streams and tokens per response: lower engine.max_batch_size, "
    "or add a replica, then check with `tritonctl loadtest run`.",
    "e2e_p99_ms": "Look which grew: time to first token, inter-token latency, or the length of "
    "answers (tokens per request).",
}

# SPDX-License-Identifier: Apache-2.0
"""Recording rules: what dashboards and alerts query, computed once, over all replicas.

`model:` series describe each step, `public_model:` series what clients see. What Triton counts was
measured on 2.51 (table in docs/how-to/monitor.md): an ensemble counts a failed request twice, a
cancelled one once (as does the step that the cancellation meets), one that its detokenizer lost
once, all with the reason OTHER. A step counts an error that its Python model answers as a success;
its reason is in `tritonctl_errors_total` alone.
"""

from __future__ import annotations

from typing import Any

from tritonctl.repository.ensembles import CACHED, ENGINE_STEP
from tritonctl.server.observe.prometheus import ENSEMBLE, MODEL

Rule = dict[str, Any]
Group = dict[str, Any]

RANGE = "5m"
QUANTILES = (0.5, 0.9, 0.99)
HISTOGRAMS = (
    "tritonctl_time_to_first_token_seconds",
    "tritonctl_inter_token_latency_seconds",
    "tritonctl_request_duration_seconds",
)
_STEP = "public_model, step, model"
_SUCCESS = "nv_inference_request_success"
_FAILURE = "nv_inference_request_failure"


def recording_groups() -> list[Group]:
    """The rules that are the same for every project; the SLO's are in `slo.py`."""
    return [
        {"name": "tritonctl-steps", "rules": _steps()},
        {"name": "tritonctl-requests", "rules": _requests()},
        {"name": "tritonctl-tokens", "rules": _tokens()},
        {"name": "tritonctl-latency", "rules": _latency()},
        {"name": "tritonctl-releases", "rules": _releases()},
    ]


def record(name: str, expression: str, **labels: str) -> Rule:
    """A recording rule."""
    rule: Rule = {"record": name, "expr": expression}
    return rule | ({"labels": labels} if labels else {})


def rate(metric: str, by: str = "public_model", **labels: str) -> str:
    """`sum by (…) (rate(metric{labels}[5m]))`; labels are those of `selector`."""
    return f"sum by ({by}) (rate({metric}{selector(**labels)}[{RANGE}]))"


def selector(**labels: str) -> str:
    """`{name="value",…}`; `!value`, `~value` and `!~value` use that operator."""
    inside = ",".join(_matcher(name, value) for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _matcher(name: str, value: str) -> str:
    operators = {"!~": "!~", "!": "!=", "~": "=~"}
    sign = next((sign for sign in operators if value.startswith(sign)), "")
    return f'{name}{operators.get(sign, "=")}"{value.removeprefix(sign)}"'


def _steps() -> list[Rule]:
    queue, whole = "nv_inference_queue_duration_us", "nv_inference_request_duration_us"
    executions = rate("nv_inference_exec_count", _STEP)
    hits, misses = (rate(f"nv_cache_num_{what}_per_model", _STEP) for what in ("hits", "misses"))
    # Triton 2.51 does not count hits of an ensemble whose version is not 1: what its cache did not
    # answer reached the engine.
    cached, engine = rate(_SUCCESS, _STEP, step=CACHED), rate(_SUCCESS, step=ENGINE_STEP)
    behind = f"clamp_min(1 - {engine} / on (public_model) group_right () ({cached} > 0), 0)"
    return [
        record("model:nv_inference_request_success:rate5m", rate(_SUCCESS, _STEP)),
        record(
            "model:nv_inference_queue:share5m", f"{rate(queue, _STEP)} / ({rate(whole, _STEP)} > 0)"
        ),
        record(
            "model:nv_inference_batch:factor5m",
            f"{rate('nv_inference_count', _STEP)} / ({executions} > 0)",
        ),
        record("model:nv_cache:hit_ratio5m", f"({hits} / (({hits} + {misses}) > 0)) or {behind}"),
    ]


def _requests() -> list[Rule]:
    ensemble, cancelled = "public_model:ensemble_failures:rate5m", "public_model:cancelled:rate5m"
    lost, errors = "public_model:lost_by_detokenizer:rate5m", "public_model:errors:rate5m"
    failures, answers = "public_model:failures:rate5m", "public_model:answers:rate5m"
    broken = rate(_FAILURE, step="detokenizer", reason="BACKEND")
    twice = f"clamp_min(({ensemble} - {cancelled}) or {ensemble}, 0) / 2"
    # Failures by Triton's reason, of the steps that count a request once.
    once = f"!~{ENSEMBLE}|{CACHED}|detokenizer"
    by_triton = rate(_FAILURE, "public_model, reason", step=once, reason="!CANCELED")
    # Models without steps: a Python backend's answer with an error counts as a success.
    plain, answered = rate(_SUCCESS, step=MODEL), rate("tritonctl_errors_total", step=MODEL)
    plain_answers = f"clamp_min(({plain} - {answered}) or {plain}, 0)"
    failed = rate(_FAILURE, step=MODEL, reason="!CANCELED")
    plain_failures = f"({failed} + {answered}) or {failed}"
    attributed = f'sum by (public_model) ({errors}{{reason!="unattributed"}})'
    return [
        record(ensemble, rate(_FAILURE, step=ENSEMBLE)),
        record(cancelled, rate(_FAILURE, step=f"!{ENSEMBLE}", reason="CANCELED")),
        # With a dead detokenizer every response fails; its ensemble counts the request once.
        record(lost, f"({ensemble} <= {broken}) or {broken}"),
        record(failures, f"({twice} >= {lost}) or {lost} or {twice} or {plain_failures}"),
        record(errors, f"{rate('tritonctl_errors_total', 'public_model, reason')} or {by_triton}"),
        record(errors, lost, reason="BACKEND", step="detokenizer"),
        record(
            errors,
            f"clamp_min(({failures} - {attributed}) or {failures}, 0)",
            reason="unattributed",
        ),
        record(answers, f"{rate(_SUCCESS, step=ENSEMBLE)} or {plain_answers}"),
        record("public_model:requests:rate5m", f"({answers} + {failures}) or {answers}"),
    ]


def _tokens() -> list[Rule]:
    output, kv = rate("tritonctl_output_tokens_total"), "tritonctl_kv_blocks"
    responses, blocks = rate("tritonctl_responses_total"), "tritonctl_prefix_cache_blocks_total"
    used = f"sum by (public_model, instance, model_instance) ({kv}{selector(state='used')})"
    every = f"sum by (public_model, instance, model_instance) ({kv})"
    return [
        record("public_model:output_tokens:rate5m", output),
        record("public_model:input_tokens:rate5m", rate("tritonctl_input_tokens_total")),
        record("public_model:tokens_per_response:ratio5m", f"{output} / ({responses} > 0)"),
        # The fullest cache: an average would hide the one that refuses streams.
        record(
            "public_model:kv_blocks:used_ratio", f"max by (public_model) ({used} / ({every} > 0))"
        ),
        record(
            "public_model:prefix_cache:hit_ratio5m",
            f"{rate(blocks, outcome='reused')} / ({rate(blocks)} > 0)",
        ),
    ]


def _latency() -> list[Rule]:
    return [
        record(
            f"public_model:{name}:quantile5m",
            f"histogram_quantile({quantile}, {rate(f'{name}_bucket', 'public_model, le')})",
            quantile=str(quantile),
        )
        for name in HISTOGRAMS
        for quantile in QUANTILES
    ]


VERSION_ANSWERS = "public_model_version:answers:rate5m"
VERSION_FAILURES = "public_model_version:failures:ratio5m"
VERSION_TTFT = "public_model_version:tritonctl_time_to_first_token_seconds:median5m"


def _releases() -> list[Rule]:
    """By the version of the model, which is the number of the release that its server serves.

    Failures of text are the engine's own: a request that its tokenizer refuses tells nothing of a
    release, and an ensemble counts cancelled requests among the failed ones.
    """
    by = "public_model, version"
    answers = rate(_SUCCESS, by, step=f"~{ENSEMBLE}|{MODEL}")
    text = rate("tritonctl_requests_total", by)
    failed_text = rate("tritonctl_requests_total", by, outcome="error")
    failed = rate(_FAILURE, by, step=MODEL, reason="!CANCELED")
    plain = f"{failed} / (({rate(_SUCCESS, by, step=MODEL)} + {failed}) > 0)"
    buckets = rate(f"{HISTOGRAMS[0]}_bucket", f"{by}, le")
    return [
        record(VERSION_ANSWERS, answers),
        record(
            VERSION_FAILURES,
            f"({failed_text} / ({text} > 0)) or 0 * ({text} > 0) or {plain}",
        ),
        record(VERSION_TTFT, f"histogram_quantile(0.5, {buckets})"),
    ]

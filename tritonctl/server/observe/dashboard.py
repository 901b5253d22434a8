# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard: overview, per model, text generation, releases, GPU.

It queries the recorded series of `tritonctl.server.observe.recording` where one exists.
"""

from __future__ import annotations

from typing import Any

from tritonctl.server.observe.frontend_panels import frontend_panels
from tritonctl.server.observe.panels import DATASOURCE, Panel, Query, Row, grafana_panels
from tritonctl.server.observe.prometheus import JOB
from tritonctl.server.observe.recording import QUANTILES, rate, selector
from tritonctl.server.observe.release_panels import release_panels
from tritonctl.server.observe.slo import RATIO

Data = dict[str, Any]

UID, TITLE = "tritonctl", "Triton by tritonctl"
GPU_ROW = "GPU"
CACHE_PANEL = "Answered from the cache"  # empty where no model has one
_SCHEMA_VERSION = 41
_MODEL = {"public_model": "~$model"}
_SERVER = {"instance": "~$instance"}
_TTFT = "tritonctl_time_to_first_token_seconds"
_STEP_LEGEND = "{{model}}"
_LATE = (("orange", 0.001), ("red", 0.01))


def dashboard(*, frontend: bool = False) -> Data:
    """The whole dashboard. frontend: with the row of the OpenAI API."""
    return {
        "uid": UID,
        "title": TITLE,
        "description": "Made by tritonctl; changes made here are lost when it is rendered again.",
        "tags": ["triton", "tritonctl"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), *_variables()]},
        "annotations": {"list": []},
        "links": [],
        "panels": grafana_panels(_rows(frontend=frontend)),
    }


def _rows(*, frontend: bool) -> tuple[Row, ...]:
    return (
        Row("Overview", (*_overview_figures(), *_overview_lines())),
        Row("Per model", _models()),
        Row("Text generation", (*_text_latency(), *_text_engine())),
        Row("Releases", release_panels()),
        *((Row("Frontend", frontend_panels()),) if frontend else ()),
        Row(GPU_ROW, _gpus()),
    )


def _datasource() -> Data:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "refresh": 1,
        "current": {"text": "Prometheus", "value": "prometheus"},  # as it is provisioned
    }


# What a colour means is the same on every panel, and can be told apart by the colour-blind (Okabe
# and Ito's palette): work, waiting, done, broken, nobody's fault.
_WORK, _WAIT, _DONE, _BROKEN, _NEUTRAL = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#8e8e8e"
_ALSO_WORK = "#56b4e9"
_REASONS = {
    "invalid": _NEUTRAL,
    "queue_full": _WAIT,
    "unavailable": "#cc79a7",
    "failed": _BROKEN,
    "unattributed": _ALSO_WORK,
}
_OUTCOMES = {"stop": _DONE, "length": _ALSO_WORK, "cancelled": _NEUTRAL, "error": _BROKEN}
_PHASE_COLOURS = {"queue": _WAIT, "input": _ALSO_WORK, "compute": _WORK, "output": _DONE}
_QUANTILE_COLOURS = {"p50": _WORK, "p90": _WAIT, "p99": _BROKEN}


def _variables() -> list[Data]:
    variables = {
        "model": ("Model", "label_values(public_model:requests:rate5m, public_model)"),
        "instance": ("Server", f'label_values(up{{job="{JOB}"}}, instance)'),
    }
    return [
        {
            "type": "query",
            "name": name,
            "label": label,
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for name, (label, query) in variables.items()
    ]


def _recorded(name: str, **labels: str) -> str:
    return f"{name}{selector(**(_MODEL | labels))}"


def _figure(title: str, text: str, expression: str, unit: str, **more: Any) -> Panel:
    return Panel(title, text, (Query(expression),), unit, kind="stat", width=4, height=4, **more)


def _overview_figures() -> tuple[Panel, ...]:
    failures, requests = (
        _recorded("public_model:failures:rate5m"),
        _recorded("public_model:requests:rate5m"),
    )
    ttft = _recorded(
        "public_model:tritonctl_time_to_first_token_seconds:quantile5m", quantile="0.99"
    )
    return (
        _figure(
            "Servers up",
            "Tritons that answer Prometheus.",
            f"sum(up{selector(job=JOB, **_SERVER)})",
            "none",
        ),
        _figure("Requests", "Answered or failed, all models.", f"sum({requests})", "reqps"),
        _figure(
            "Failing requests",
            "Share of requests, with mistakes of clients, without cancelled requests.",
            f"sum({failures}) / sum({requests})",
            "percentunit",
            steps=_LATE,
        ),
        _figure(
            "Output tokens",
            "Sent to clients.",
            f"sum({_recorded('public_model:output_tokens:rate5m')})",
            "short",
        ),
        _figure("TTFT, p99", "The slowest model's, seen from the engine.", f"max({ttft})", "s"),
        _figure(
            "Alerts firing",
            "What to do about each is in its runbook, on Prometheus' page Alerts.",
            'count(ALERTS{alertstate="firing"}) or vector(0)',
            "none",
            steps=(("red", 1),),
        ),
    )


def _overview_lines() -> tuple[Panel, ...]:
    return (
        Panel(
            "Requests by model",
            "Answered or failed, over all servers.",
            (Query(_recorded("public_model:requests:rate5m"), "{{public_model}}"),),
            "reqps",
        ),
        Panel(
            "Failures by reason",
            "Each request once: lower case by our backends, upper case by Triton; unattributed is "
            "what Triton refused itself, such as in its full queue.",
            (Query(_recorded("public_model:errors:rate5m"), "{{public_model}} {{reason}}"),),
            "reqps",
            stacked=True,
            colours=_REASONS,
        ),
        Panel(
            "Error budget: bad events",
            "Share of events that miss the SLO over an hour; 14.4 times its budget pages.",
            (Query(_recorded(RATIO.format("1h")), "{{public_model}} {{slo}}"),),
            "percentunit",
        ),
        Panel(
            "Processors of the server's machine",
            "As Triton sees them.",
            (Query(f"nv_cpu_utilization{selector(**_SERVER)}", "{{instance}}"),),
            "percentunit",
            width=12,
            top=1,
        ),
        Panel(
            "Memory of the server's machine",
            "As Triton sees it.",
            (
                Query(f"nv_cpu_memory_used_bytes{selector(**_SERVER)}", "{{instance}} used"),
                Query(f"nv_cpu_memory_total_bytes{selector(**_SERVER)}", "{{instance}} total"),
            ),
            "bytes",
            width=12,
        ),
    )


def _models() -> tuple[Panel, ...]:
    labels = selector(**_MODEL, **_SERVER)
    pending = f"sum by (model, instance) (nv_inference_pending_request_count{labels})"
    uptime = f"increase(tritonctl_uptime_seconds_total{labels}[1m])"
    requests = _recorded("public_model:requests:rate5m")
    alive = f"sum by (model_instance, instance) ({uptime}) > bool 0"
    return (
        Panel(
            "Requests by step",
            "A detokenizer counts one per response.",
            (Query(_recorded("model:nv_inference_request_success:rate5m"), _STEP_LEGEND),),
            "reqps",
        ),
        Panel(
            "Queue's share of latency",
            "Near 1, requests mostly wait: add instances or replicas. Engines with a queue of "
            "their own show it under Streams instead.",
            (Query(_recorded("model:nv_inference_queue:share5m"), _STEP_LEGEND),),
            "percentunit",
            top=1,
        ),
        Panel(
            "Batch factor",
            "Inferences per execution; 1 means that batching does nothing.",
            (Query(_recorded("model:nv_inference_batch:factor5m"), _STEP_LEGEND),),
        ),
        Panel(
            "Time per request",
            "Mean by phase, over all steps of the model, without the ensemble itself.",
            tuple(
                Query(
                    f"{rate(metric, step='!ensemble', **_MODEL)} / ({requests} > 0)",
                    f"{{{{public_model}}}} {name}",
                )
                for name, metric in _PHASES.items()
            ),
            "µs",
            stacked=True,
            colours=_PHASE_COLOURS,
        ),
        Panel(
            CACHE_PANEL,
            "Share of requests that Triton's response cache answered, of models that have one.",
            (Query(_recorded("model:nv_cache:hit_ratio5m"), _STEP_LEGEND),),
            "percentunit",
            top=1,
        ),
        Panel(
            "Pending requests", "In Triton's queues.", (Query(pending, "{{model}} {{instance}}"),)
        ),
        Panel(
            "Processes alive",
            "1 while a Python model's process counts its seconds; Triton does not start a dead one "
            "again.",
            (Query(alive, "{{model_instance}} {{instance}}"),),
            top=1,
        ),
    )


_PHASES = {
    "queue": "nv_inference_queue_duration_us",
    "input": "nv_inference_compute_input_duration_us",
    "compute": "nv_inference_compute_infer_duration_us",
    "output": "nv_inference_compute_output_duration_us",
}


def _quantiles(title: str, text: str, metric: str) -> Panel:
    queries = tuple(
        Query(
            _recorded(f"public_model:{metric}:quantile5m", quantile=str(quantile)),
            f"{{{{public_model}}}} p{quantile * 100:g}",
        )
        for quantile in QUANTILES
    )
    return Panel(title, text, queries, "s", colours=_QUANTILE_COLOURS)


def _text_latency() -> tuple[Panel, ...]:
    return (
        _quantiles(
            "Time to first token",
            "Seen from the engine: without the tokenizer, Triton's queue and the network.",
            _TTFT,
        ),
        _quantiles(
            "Inter-token latency",
            "Time per token after the first response.",
            "tritonctl_inter_token_latency_seconds",
        ),
        _quantiles(
            "Duration of whole answers",
            "Seen from the engine; answers that were cancelled or failed are left out.",
            "tritonctl_request_duration_seconds",
        ),
    )


def _text_engine() -> tuple[Panel, ...]:
    streams = {"active": "tritonctl_active_streams", "waiting": "tritonctl_waiting_streams"}
    outcomes = rate("tritonctl_requests_total", "public_model, outcome", **_MODEL)
    return (
        Panel(
            "Tokens",
            "Of prompts in, of answers out.",
            (
                Query(_recorded("public_model:output_tokens:rate5m"), "{{public_model}} out"),
                Query(_recorded("public_model:input_tokens:rate5m"), "{{public_model}} in"),
            ),
        ),
        Panel(
            "Streams",
            "In the engine, and waiting for a place in it.",
            tuple(
                Query(
                    f"sum by (public_model) ({name}{selector(**_MODEL, **_SERVER)})",
                    f"{{{{public_model}}}} {word}",
                )
                for word, name in streams.items()
            ),
            stacked=True,
            colours={"active": _WORK, "waiting": _WAIT},
        ),
        Panel(
            "KV cache in use",
            "The fullest of the replicas.",
            (Query(_recorded("public_model:kv_blocks:used_ratio"), "{{public_model}}"),),
            "percentunit",
            top=1,
        ),
        Panel(
            "Requests by outcome",
            "Of those that the engine accepted.",
            (Query(outcomes, "{{public_model}} {{outcome}}"),),
            "reqps",
            width=12,
            stacked=True,
            colours=_OUTCOMES,
        ),
        Panel(
            "Tokens per response",
            "Coalescing: 1 while the server keeps up with the engine.",
            (Query(_recorded("public_model:tokens_per_response:ratio5m"), "{{public_model}}"),),
            width=12,
        ),
    )


def _gpus() -> tuple[Panel, ...]:
    def query(name: str, legend: str = "{{instance}} {{gpu_uuid}}") -> Query:
        return Query(f"{name}{selector(**_SERVER)}", legend)

    return (
        Panel(
            "GPU utilisation",
            "Share of the time in which a kernel ran.",
            (query("nv_gpu_utilization"),),
            "percentunit",
            width=6,
            top=1,
        ),
        Panel(
            "GPU memory",
            "In use, and in all.",
            (
                query("nv_gpu_memory_used_bytes", "{{gpu_uuid}} used"),
                query("nv_gpu_memory_total_bytes", "{{gpu_uuid}} total"),
            ),
            "bytes",
            width=6,
        ),
        Panel(
            "GPU power",
            "At its limit the GPU lowers its clock.",
            (
                query("nv_gpu_power_usage", "{{gpu_uuid}} used"),
                query("nv_gpu_power_limit", "{{gpu_uuid}} limit"),
            ),
            "watt",
            width=6,
        ),
        Panel(
            "GPU prefix cache hits",
            "Share of prompt blocks found in the KV cache; of TensorRT-LLM, OpenVINO has no count.",
            (Query(_recorded("public_model:prefix_cache:hit_ratio5m"), "{{public_model}}"),),
            "percentunit",
            width=6,
            top=1,
        ),
    )

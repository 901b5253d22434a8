# SPDX-License-Identifier: Apache-2.0
"""Scaling metrics: waiting and active streams, and KV cache usage.

Both are current values. Triton's counters only change when a request completes, so they miss
waiting long streams; GPU utilisation is high as soon as one stream runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tritonctl.frontend.routing.replicas import slots_of
from tritonctl.project.schema import Project
from tritonctl.protocol.engine_gauges import ACTIVE, KV_FREE, KV_USED, WAITING, Sources
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.runtimes.docker.container_limits import repository_configs

# Placeholder for the selected pods: KEDA queries all together, the adapter each one.
PODS = "__PODS__"
GATEWAYS = "__GATEWAYS__"  # placeholder for this installation's gateways
KV_PERCENT = 90  # above, streams soon wait for blocks
_TARGET_UTILISATION = 0.8  # of the slots
_DEFAULT_STREAMS = 16
_MATCHERS = "<<.LabelMatchers>>"


def stream_slots(project: Project, plan: RepositoryPlan) -> int | None:
    """Return the number of concurrent streams of one server; None if no model defines it."""
    return slots_of(repository_configs(project.repository, plan.model_names))


def streams_per_replica(slot_count: int | None) -> int:
    """Return the target number of waiting and active streams per server."""
    return max(1, int(slot_count * _TARGET_UTILISATION)) if slot_count else _DEFAULT_STREAMS


def queries() -> dict[str, str]:
    """Return PromQL queries over all pods by name; the target is their average over the pods.

    `arrivals`: requests of the last minute that reached the gateway while it had no server.
    """
    streams, kv = _gauges([*ACTIVE, *WAITING], PODS), _kv_percent("namespace, pod", PODS)
    clusters, all_clusters = (
        f'envoy_cluster_name=~"{names}",{GATEWAYS}'
        for names in ("triton_grpc.*", "triton.*|frontend.*")
    )
    # Without a ready server nothing streams. The query then returns 0: no result would look like a
    # lost Prometheus, which scales to the maximum.
    without_server = f"(sum(envoy_cluster_membership_healthy{{{clusters}}}) == 0)"
    return {
        "streams": f"sum({streams}) or {without_server}",
        "kv": f"sum({kv}) or {without_server}",
        "arrivals": f"sum(increase(envoy_cluster_upstream_cx_none_healthy{{{all_clusters}}}[1m]))",
    }


def adapter_values() -> dict[str, Any]:
    """Return values for prometheus-adapter's chart that define the HPA's metrics."""
    by = "<<.GroupBy>>"
    streams = f"sum by ({by}) ({_gauges([*ACTIVE, *WAITING], _MATCHERS)})"
    return {
        "rules": {
            "custom": [
                _rule("tritonctl_streams", "nv_inference_pending_request_count", streams),
                _rule("tritonctl_kv_used_percent", KV_USED[0][0], _kv_percent(by, _MATCHERS)),
            ]
        }
    }


def _rule(name: str, series: str, query: str) -> dict[str, Any]:
    resources = {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}
    return {
        "seriesQuery": f'{series}{{namespace!="",pod!=""}}',
        "resources": {"overrides": resources},
        "name": {"as": name},
        "metricsQuery": query,
    }


def _kv_percent(by: str, pods: str) -> str:
    """Return PromQL for the usage of each pod's fullest cache, in per cent."""
    used, free = (f"sum by ({by}, model) ({_gauges(each, pods)})" for each in (KV_USED, KV_FREE))
    return f"max by ({by}) (100 * {used} / ({used} + {free}))"


def _gauges(sources: Sources, pods: str) -> str:
    """Return PromQL for the series of all engines; series without labels match by name."""
    plain = [name for name, labels in sources if not labels]
    names = "|".join(map(re.escape, plain))
    unlabelled_series = [f'{{__name__=~"{names}",{pods}}}'] if plain else []
    labelled: dict[str, list[Mapping[str, str]]] = {}
    for name, labels in sources:
        if labels:
            labelled.setdefault(name, []).append(labels)
    labelled_series = [f"{name}{{{_matchers(each)},{pods}}}" for name, each in labelled.items()]
    return " or ".join([*unlabelled_series, *labelled_series])


def _matchers(choices: Sequence[Mapping[str, str]]) -> str:
    """Return a matcher for one label with several allowed values."""
    label = next(iter(choices[0]))
    return f'{label}=~"{"|".join(each[label] for each in choices)}"'

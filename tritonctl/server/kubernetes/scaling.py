# SPDX-License-Identifier: Apache-2.0
"""What replicas are counted by: streams, waiting and active, and how full the KV cache is.

Both are of this moment. Triton's own counters move when a request completes, so they are blind
while long streams wait; a GPU's utilisation is high as soon as one stream runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tritonctl.frontend.routing.replicas import slots_of
from tritonctl.project.schema import Project
from tritonctl.protocol.engine_gauges import ACTIVE, KV_FREE, KV_USED, WAITING, Sources
from tritonctl.repository.plan import Plan
from tritonctl.server.containers.sizes import repository_configs

# Stands for the pods that are meant: KEDA asks for all of them, the adapter for each.
PODS = "__PODS__"
GATEWAYS = "__GATEWAYS__"  # those of this installation
KV_PERCENT = 90  # above that streams soon wait for blocks
_BUSY = 0.8  # of the slots
_WITHOUT_SLOTS = 16
_MATCHERS = "<<.LabelMatchers>>"


def slots(project: Project, plan: Plan) -> int | None:
    """Streams that one server advances at once; None where no model tells."""
    return slots_of(repository_configs(project.repository, plan.served))


def streams_per_replica(places: int | None) -> int:
    """How many streams, waiting and active, one server is enough for."""
    return max(1, int(places * _BUSY)) if places else _WITHOUT_SLOTS


def queries() -> dict[str, str]:
    """Of all pods, PromQL by name: an average over the pods is what is to be kept.

    `arrivals`: requests of the last minute that came to the gateway when it had no server.
    """
    streams, kv = _gauges([*ACTIVE, *WAITING], PODS), _kv_percent("namespace, pod", PODS)
    clusters, every = (
        f'envoy_cluster_name=~"{names}",{GATEWAYS}'
        for names in ("triton_grpc.*", "triton.*|frontend.*")
    )
    # Without a ready server nothing streams, whatever Prometheus knows. No answer must then not be
    # taken for a lost Prometheus, which would start as many servers as there may be.
    nobody = f"(sum(envoy_cluster_membership_healthy{{{clusters}}}) == 0)"
    return {
        "streams": f"sum({streams}) or {nobody}",
        "kv": f"sum({kv}) or {nobody}",
        "arrivals": f"sum(increase(envoy_cluster_upstream_cx_none_healthy{{{every}}}[1m]))",
    }


def adapter_values() -> dict[str, Any]:
    """Values of prometheus-adapter's own chart: the metrics that the HPA asks for."""
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
    """Of the fullest cache of each pod."""
    used, free = (f"sum by ({by}, model) ({_gauges(each, pods)})" for each in (KV_USED, KV_FREE))
    return f"max by ({by}) (100 * {used} / ({used} + {free}))"


def _gauges(sources: Sources, pods: str) -> str:
    """The series of all engines. Those without labels to match go by their names together."""
    plain = [name for name, labels in sources if not labels]
    names = "|".join(map(re.escape, plain))
    together = [f'{{__name__=~"{names}",{pods}}}'] if plain else []
    labelled: dict[str, list[Mapping[str, str]]] = {}
    for name, labels in sources:
        if labels:
            labelled.setdefault(name, []).append(labels)
    apart = [f"{name}{{{_matchers(each)},{pods}}}" for name, each in labelled.items()]
    return " or ".join([*together, *apart])


def _matchers(choices: Sequence[Mapping[str, str]]) -> str:
    """One series with a label that may have several values."""
    label = next(iter(choices[0]))
    return f'{label}=~"{"|".join(each[label] for each in choices)}"'

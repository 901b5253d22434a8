# SPDX-License-Identifier: Apache-2.0
"""prometheus.yml: who is scraped, and which public model a series belongs to.

Triton labels its series with the name of the model that runs, `speller_engine`. Rules and panels
ask for what the project calls a model: scraping adds `public_model` (speller) and `step` (engine,
`ensemble` for the public model itself, `model` for one without steps).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.project.schema import Project
from tritonctl.repository import tensorrtllm
from tritonctl.repository.ensembles import ensemble_for, step_model_name
from tritonctl.repository.plan import ENGINE_STEP

Data = dict[str, Any]

JOB, GATEWAY_JOB = "triton", "gateway"
ENSEMBLE, MODEL = "ensemble", "model"
RULES = "rules/*.yml"
SCRAPE_SECONDS = 5
EVALUATION_SECONDS = 15
_METRICS_PORT = 8002  # inside a container, whatever the project publishes
_SERVICES = ("triton", "triton-gpu")
_GATEWAY_SERVICE, _GATEWAY_PATH = "envoy", "/stats/prometheus"


@dataclass(frozen=True)
class Part:
    """A model of the repository: whose part it is, and which."""

    name: str
    public_model: str
    step: str


def parts(project: Project) -> list[Part]:
    """Every model that the project's repository has, the public ones among them."""
    return [part for name in sorted(project.models) for part in _parts(project, name)]


def _parts(project: Project, name: str) -> Iterator[Part]:
    model = project.models[name]
    if model.serving.backend == tensorrtllm.BACKEND:
        yield Part(step_model_name(name, ENGINE_STEP), name, MODEL)
        return
    ensemble, _ = ensemble_for(model.task, project.root)
    if ensemble.kind == MODEL:
        yield Part(name, name, MODEL)
        return
    yield Part(name, name, ENSEMBLE)
    for step in ensemble.steps:
        yield Part(step_model_name(name, step), name, step)


def metric_relabeling(project: Project) -> list[Data]:
    """`metric_relabel_configs`: the labels `public_model` and `step` by the label `model`."""
    return [
        {
            "source_labels": ["model"],
            "regex": re.escape(part.name),
            "target_label": label,
            "replacement": value,
        }
        for part in parts(project)
        for label, value in (("public_model", part.public_model), ("step", part.step))
    ]


def prometheus_configuration(project: Project, targets: Sequence[str] | None = None) -> Data:
    """The whole file. targets: host:port of each server; the services of compose when absent."""
    jobs = [_triton(project, targets)]
    if project.gateway is not None:
        jobs.append(_gateway(project.gateway.admin_port))
    return {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": f"{EVALUATION_SECONDS}s",
        },
        "rule_files": [RULES],
        "scrape_configs": jobs,
    }


def _triton(project: Project, targets: Sequence[str] | None) -> Data:
    return {
        "job_name": JOB,
        **_found(targets, _SERVICES, _METRICS_PORT),
        "metric_relabel_configs": metric_relabeling(project),
    }


def _gateway(port: int) -> Data:
    found = _found(None, (_GATEWAY_SERVICE,), port)
    return {"job_name": GATEWAY_JOB, "metrics_path": _GATEWAY_PATH, **found}


def _found(targets: Sequence[str] | None, services: Sequence[str], port: int) -> Data:
    if targets is not None:
        return {"static_configs": [{"targets": list(targets)}]}
    # Every replica has an address of its own behind the service's name.
    search = {"names": list(services), "type": "A", "port": port, "refresh_interval": "10s"}
    return {"dns_sd_configs": [search]}

# SPDX-License-Identifier: Apache-2.0
"""prometheus.yml: what Prometheus scrapes, and which public model each series belongs to.

Triton labels its series with the name of the model that runs, `speller_engine`. Rules and panels
use the project's name for a model, so scraping adds `public_model` (speller) and `step` (engine;
`ensemble` for the public model itself, `model` for one without steps).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.project.schema import Project
from tritonctl.repository import tensorrtllm
from tritonctl.repository.ensembles import ENGINE_STEP, step_model_name
from tritonctl.repository.steps import step_models

Data = dict[str, Any]

JOB, GATEWAY_JOB, FRONTEND_JOB = "triton", "gateway", "frontend"
ENSEMBLE, MODEL = "ensemble", "model"
RULES = "rules/*.yml"
SCRAPE_SECONDS = 5
EVALUATION_SECONDS = 15
_METRICS_PORT = 8002  # inside a container, whatever the project publishes
_SERVICES = ("triton", "triton-gpu")
_FRONTEND_SERVICE, _FRONTEND_PORT = "frontend", 9000  # where the project has it chosen
_GATEWAY_SERVICE, _GATEWAY_PATH = "envoy", "/stats/prometheus"


@dataclass(frozen=True)
class Part:
    """A model of the repository: the public model that it belongs to, and its step."""

    name: str
    public_model: str
    step: str


def parts(project: Project) -> list[Part]:
    """Every model of the project's repository, public ones included."""
    return [part for name in project.public for part in _parts(project, name)]


def _parts(project: Project, name: str) -> Iterator[Part]:
    model = project.models.get(name)
    if model and model.serving.backend == tensorrtllm.BACKEND:
        yield Part(step_model_name(name, ENGINE_STEP), name, MODEL)
        return
    steps = step_models(project, name)
    if name in steps.values():
        yield Part(name, name, MODEL)
        return
    yield Part(name, name, ENSEMBLE)
    for step, served in steps.items():
        yield Part(served, name, step)


def metric_relabeling(project: Project) -> list[Data]:
    """`metric_relabel_configs`: derives `public_model` and `step` from the label `model`."""
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
    """The whole file. targets: host:port of each server; compose's services when None."""
    servers = _discovery(targets, _SERVICES, _METRICS_PORT)
    relabeling = metric_relabeling(project)
    jobs = [{"job_name": JOB, **servers, "metric_relabel_configs": relabeling}]
    if project.gateway is not None:
        discovery = _discovery(None, (_GATEWAY_SERVICE,), project.gateway.admin_port)
        jobs.append({"job_name": GATEWAY_JOB, "metrics_path": _GATEWAY_PATH, **discovery})
    if project.frontend is not None:
        port = project.frontend.port or _FRONTEND_PORT
        jobs.append({"job_name": FRONTEND_JOB, **_discovery(None, (_FRONTEND_SERVICE,), port)})
    return {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": f"{EVALUATION_SECONDS}s",
        },
        "rule_files": [RULES],
        "scrape_configs": jobs,
    }


def _discovery(targets: Sequence[str] | None, services: Sequence[str], port: int) -> Data:
    if targets is not None:
        return {"static_configs": [{"targets": list(targets)}]}
    # Each replica has its own address behind the service's name.
    search = {"names": list(services), "type": "A", "port": port, "refresh_interval": "10s"}
    return {"dns_sd_configs": [search]}

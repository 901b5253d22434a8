# SPDX-License-Identifier: Apache-2.0
"""Build prometheus.yml: scrape targets, and the public model of each series.

Triton labels its series with the name of the running model, such as `speller_engine`. Rules and
panels use the project's model names, so scraping adds `public_model` (speller) and `step` (engine;
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
_FRONTEND_SERVICE, _FRONTEND_PORT = "frontend", 9000  # if the project sets port 0
FRONTEND_KEY = "frontend_metrics_key"  # the secret's name, also frontend/config.py's
_KEY = {"authorization": {"credentials_file": f"/run/secrets/{FRONTEND_KEY}"}}
_GATEWAY_SERVICE, _GATEWAY_PATH = "envoy", "/stats/prometheus"


@dataclass(frozen=True)
class ModelStep:
    """A model of the repository, with its public model and step."""

    name: str
    public_model: str
    step: str


def deployed_models(project: Project) -> list[ModelStep]:
    """Return every model of the project's repository, including public ones."""
    return [part for name in project.public for part in _steps_of(project, name)]


def _steps_of(project: Project, name: str) -> Iterator[ModelStep]:
    model = project.models.get(name)
    if model and model.serving.backend == tensorrtllm.BACKEND:
        yield ModelStep(step_model_name(name, ENGINE_STEP), name, MODEL)
        return
    steps = step_models(project, name)
    if name in steps.values():
        yield ModelStep(name, name, MODEL)
        return
    yield ModelStep(name, name, ENSEMBLE)
    for step, model_name in steps.items():
        yield ModelStep(model_name, name, step)


def metric_relabeling(project: Project) -> list[Data]:
    """Return `metric_relabel_configs` that derive `public_model` and `step` from `model`."""
    return [
        {
            "source_labels": ["model"],
            "regex": re.escape(part.name),
            "target_label": label,
            "replacement": value,
        }
        for part in deployed_models(project)
        for label, value in (("public_model", part.public_model), ("step", part.step))
    ]


def prometheus_configuration(project: Project, targets: Sequence[str] | None = None) -> Data:
    """Return the configuration. targets: host:port of each server; None: compose's services."""
    servers = _discovery(targets, _SERVICES, _METRICS_PORT)
    relabeling = metric_relabeling(project)
    jobs = [{"job_name": JOB, **servers, "metric_relabel_configs": relabeling}]
    if project.gateway is not None:
        discovery = _discovery(None, (_GATEWAY_SERVICE,), project.gateway.admin_port)
        jobs.append({"job_name": GATEWAY_JOB, "metrics_path": _GATEWAY_PATH, **discovery})
    if project.frontend is not None:
        port = project.frontend.port or _FRONTEND_PORT
        key = {} if project.frontend.metrics_key_file is None else _KEY
        discovery = _discovery(None, (_FRONTEND_SERVICE,), port)
        jobs.append({"job_name": FRONTEND_JOB, **discovery, **key})
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

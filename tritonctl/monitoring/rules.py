# SPDX-License-Identifier: Apache-2.0
"""Prometheus rules of a project: `recording.yml`, `alerts.yml.j2`, and the rules of its SLOs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tritonctl.monitoring.slo import BURNS, Group, objectives, slo_groups
from tritonctl.project.schema import Project
from tritonctl.repository.engine_queue import needs_triton_queue, queue_policy

_FOLDER = Path(__file__).parent


def recording_groups(project: Project) -> list[Group]:
    """The groups of recording rules: the same for every project, and those of its SLOs."""
    text = (_FOLDER / "recording.yml").read_text(encoding="utf-8")
    groups: list[Group] = yaml.safe_load(text)["groups"]
    return [*groups, *slo_groups(project)]


def alert_groups(project: Project) -> list[Group]:
    """The groups of alert rules: servers, models, releases, the frontend, error budgets."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - YAML, not HTML
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    text = environment.get_template("alerts.yml.j2").render(
        replicas=project.docker.replicas,
        gateway=project.gateway is not None,
        frontend=project.frontend is not None,
        queues=list(_triton_queues(project)),
        burns=list(_burns(project)),
    )
    groups: list[Group] = json.loads(json.dumps(yaml.safe_load(text)["groups"]))  # no aliases
    return groups


def _triton_queues(project: Project) -> Iterator[dict[str, Any]]:
    """Models whose queue Triton keeps, and the number of requests that it holds."""
    for name, model in sorted(project.models.items()):
        policy = queue_policy(model.serving.queue, model.engine.max_batch_size)
        size = policy.get("default_queue_policy", {}).get("max_queue_size")
        if needs_triton_queue(model.serving.queue) and size:
            yield {"model": name, "size": size}


def _burns(project: Project) -> Iterator[dict[str, str]]:
    """The burn-rate alerts of every SLO target."""
    for objective in objectives(project):
        for burn in BURNS:
            threshold = burn.factor * objective.budget
            if threshold < 1:  # a ratio cannot exceed 1
                yield {
                    "model": objective.public_model,
                    "slo": objective.slo,
                    "threshold": f"{threshold:.6g}",
                    "long": burn.long,
                    "short": burn.short,
                    "severity": burn.severity,
                    "spent": burn.spent,
                }

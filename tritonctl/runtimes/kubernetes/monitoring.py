# SPDX-License-Identifier: Apache-2.0
"""A project's Prometheus and Grafana files for Kubernetes: the same rules with other runbooks."""

from __future__ import annotations

import json
from typing import Any

from tritonctl.monitoring.dashboard import dashboard
from tritonctl.monitoring.prometheus import metric_relabeling
from tritonctl.monitoring.rules import alert_groups, recording_groups
from tritonctl.monitoring.slo import Group
from tritonctl.project.schema import Project
from tritonctl.project.server import Docker, Gateway
from tritonctl.project.yaml_text import yaml_text

RECORDING, ALERTS = "files/recording.yaml", "files/alerts.yaml"
RELABELING, DASHBOARD = "files/relabeling.yaml", "files/dashboard.json"
_PODS = "kubectl get pods --selector app.kubernetes.io/component"
# By alert, where containers of one machine have other commands.
_RUNBOOKS = {
    "TritonServerDown": f"`{_PODS}=triton` shows which pod, `kubectl logs --previous` why it "
    "ended; if it runs, check that a NetworkPolicy lets Prometheus reach its metrics port.",
    "TritonServerMissing": f"`{_PODS}=triton`: is there a pod, and is it Pending (no GPU, no "
    "volume) or waiting for its release (`kubectl logs POD --container weights`)?",
    "GatewayDown": f"`{_PODS}=gateway`, then `kubectl logs`; with none of them clients reach no "
    "server.",
    "FrontendDown": f"`{_PODS}=frontend`, then `kubectl logs`; with none of them clients of the "
    "OpenAI API reach no model.",
}
_COMMANDS = {
    "`tritonctl logs frontend`": "`kubectl logs`",
    "`tritonctl logs`": "`kubectl logs`",
    "`tritonctl releases rollback`": "`helm rollback`",
}


def monitoring_files(project: Project) -> dict[str, str]:
    """Return rules, metric relabeling and the dashboard: path in the chart to text."""
    board = dashboard(frontend=project.frontend is not None)
    relabeling = [_camel_case(rule) for rule in metric_relabeling(project)]
    return {
        RECORDING: yaml_text({"groups": recording_groups(project)}),
        ALERTS: yaml_text({"groups": _alerts(project)}),
        RELABELING: yaml_text(relabeling),
        DASHBOARD: json.dumps(board, ensure_ascii=False) + "\n",
    }


def _alerts(project: Project) -> list[Group]:
    """Replicas come and go here: that one is missing, the Deployment knows."""
    overrides = {"docker": Docker(), "gateway": project.gateway or Gateway()}
    alerts = alert_groups(project.model_copy(update=overrides))
    for group in alerts:
        for rule in group["rules"]:
            annotations = rule["annotations"]
            annotations["runbook"] = _RUNBOOKS.get(
                rule["alert"], _kubernetes_runbook(annotations["runbook"])
            )
    return alerts


def _kubernetes_runbook(runbook: str) -> str:
    for compose_command, kubernetes_command in _COMMANDS.items():
        runbook = runbook.replace(compose_command, kubernetes_command)
    return runbook


def _camel_case(rule: dict[str, Any]) -> dict[str, Any]:
    """Convert a rule of prometheus.yml to a PodMonitor's spelling."""
    camel_case = {"source_labels": "sourceLabels", "target_label": "targetLabel"}
    return {camel_case.get(key, key): value for key, value in rule.items()}

# SPDX-License-Identifier: Apache-2.0
"""What Prometheus and Grafana read of a project on Kubernetes: the same rules, another runbook."""

from __future__ import annotations

import json
from typing import Any

from tritonctl.project.schema import Project
from tritonctl.project.server import Docker, Gateway
from tritonctl.project.yaml_text import yaml_text
from tritonctl.server.observe.alerts import alert_groups
from tritonctl.server.observe.dashboard import dashboard
from tritonctl.server.observe.prometheus import metric_relabeling
from tritonctl.server.observe.recording import Group, recording_groups
from tritonctl.server.observe.slo import slo_groups

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
_WORDS = {
    "`tritonctl logs frontend`": "`kubectl logs`",
    "`tritonctl logs`": "`kubectl logs`",
    "`tritonctl rollback`": "`helm rollback`",
}


def monitoring_files(project: Project) -> dict[str, str]:
    """Text by place in the chart: rules, labels to add to metrics, the dashboard."""
    board = dashboard(frontend=project.frontend is not None)
    relabeling = [_camel_case(rule) for rule in metric_relabeling(project)]
    return {
        RECORDING: yaml_text({"groups": [*recording_groups(), *slo_groups(project)]}),
        ALERTS: yaml_text({"groups": _alerts(project)}),
        RELABELING: yaml_text(relabeling),
        DASHBOARD: json.dumps(board, ensure_ascii=False) + "\n",
    }


def _alerts(project: Project) -> list[Group]:
    """Replicas come and go here: that one is missing, the Deployment knows."""
    one = {"docker": Docker(), "gateway": project.gateway or Gateway()}
    alerts = alert_groups(project.model_copy(update=one))
    for group in alerts:
        for rule in group["rules"]:
            told = rule["annotations"]
            told["runbook"] = _RUNBOOKS.get(rule["alert"], _replaced(told["runbook"]))
    return alerts


def _replaced(runbook: str) -> str:
    for here, there in _WORDS.items():
        runbook = runbook.replace(here, there)
    return runbook


def _camel_case(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule of prometheus.yml as a PodMonitor writes it."""
    spelt = {"source_labels": "sourceLabels", "target_label": "targetLabel"}
    return {spelt.get(key, key): value for key, value in rule.items()}

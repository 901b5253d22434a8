# SPDX-License-Identifier: Apache-2.0
"""The files of a deployment that Prometheus and Grafana read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tritonctl.host.version import __version__
from tritonctl.monitoring.dashboard import dashboard
from tritonctl.monitoring.prometheus import SCRAPE_SECONDS, prometheus_configuration
from tritonctl.monitoring.rules import alert_groups, recording_groups
from tritonctl.project.schema import Project
from tritonctl.project.yaml_text import yaml_text

PROMETHEUS_SERVICE = "prometheus"  # compose's name for it
CONFIGURATION = "prometheus/prometheus.yml"
RECORDING, ALERTS = "prometheus/rules/recording.yml", "prometheus/rules/alerts.yml"
DASHBOARD = "grafana/dashboards/tritonctl.json"
SOURCES = "grafana/provisioning/datasources/prometheus.yaml"
PROVIDERS = "grafana/provisioning/dashboards/tritonctl.yaml"
_DASHBOARDS_IN_CONTAINER = "/var/lib/grafana/dashboards"
_HEADER = f"""# SPDX-License-Identifier: Apache-2.0
# Made by tritonctl {__version__} from tritonctl.yaml
"""


def observability_files(
    project: Project, *, targets: Sequence[str] | None = None
) -> dict[str, str]:
    """Text by relative path. targets: servers (host:port) instead of compose's services."""
    configuration = prometheus_configuration(project, targets)
    return {
        CONFIGURATION: _yaml(configuration),
        RECORDING: _yaml({"groups": recording_groups(project)}),
        ALERTS: _yaml({"groups": alert_groups(project)}),
        DASHBOARD: json.dumps(
            dashboard(frontend=project.frontend is not None), indent=1, ensure_ascii=False
        )
        + "\n",
        SOURCES: _yaml(_sources()),
        PROVIDERS: _yaml(_providers()),
    }


def _sources() -> dict[str, Any]:
    """Grafana's data source: Prometheus in the same deployment."""
    source = {"name": "Prometheus", "uid": "prometheus", "type": "prometheus", "access": "proxy"}
    source["url"] = f"http://{PROMETHEUS_SERVICE}:9090"
    more = {"isDefault": True, "editable": False}
    return {
        "apiVersion": 1,
        "datasources": [source | more | {"jsonData": {"timeInterval": f"{SCRAPE_SECONDS}s"}}],
    }


def _providers() -> dict[str, Any]:
    """Where Grafana finds the dashboard."""
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": "tritonctl",
                "type": "file",
                "allowUiUpdates": False,
                "options": {"path": _DASHBOARDS_IN_CONTAINER},
            }
        ],
    }


def _yaml(data: Any) -> str:
    return _HEADER + yaml_text(data)

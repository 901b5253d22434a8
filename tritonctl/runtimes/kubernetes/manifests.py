# SPDX-License-Identifier: Apache-2.0
"""Render the chart's manifests with Helm's library in a separate environment."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tritonctl.errors import ConfigurationError, HostError, UsageError
from tritonctl.host import bundled
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python
from tritonctl.host.progress import Progress
from tritonctl.host.requirements import verified_install_arguments
from tritonctl.runtimes.kubernetes.chart import OLDEST_KUBERNETES

NEWEST_KUBERNETES = "1.37"  # newest version that the chart was checked against
_PROGRAM = "docker/render_chart.py"
_SECONDS = 120
_MAX_VALUES_BYTES = 1 << 20


def helm_recipe() -> EnvironmentRecipe:
    """Return the environment of Helm's library."""
    return EnvironmentRecipe(
        "helm",
        (verified_install_arguments("helm_requirements.lock"),),
        folder=bundled.find("docker"),
        probe="import helm_python",
    )


def minor_version(version: str | None) -> str:
    """Return the minor version, `1.31` of `v1.31.4`. Raises UsageError if it is too old."""
    if version is None:
        return NEWEST_KUBERNETES
    match = re.fullmatch(r"v?1\.(\d{1,3})(?:\.\d+.*)?", version)
    if match is None or int(match[1]) < int(OLDEST_KUBERNETES.partition(".")[2]):
        raise UsageError(
            f"--kubernetes {version}: the chart is for {OLDEST_KUBERNETES} and later",
            remedy=f"use the form {NEWEST_KUBERNETES}; `kubectl version` prints the cluster's",
        )
    return f"1.{match[1]}"


def render_manifests(
    chart: Mapping[str, str],
    name: str,
    progress: Progress,
    *,
    kubernetes: str = NEWEST_KUBERNETES,
    namespace: str = "default",
    api_versions: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Render manifests as file name to text, one for each template with output; write nothing.

    chart: result of `render_chart`. name: of the installation. kubernetes: the cluster's minor
    version. api_versions: additional APIs of the cluster. values: merged over the chart's.

    Raises ConfigurationError for values that the chart rejects, HostError if Helm's library cannot
    be installed or started.
    """
    python = environment_python(ensure_environment(helm_recipe(), progress))
    with tempfile.TemporaryDirectory(prefix="tritonctl-chart-") as folder:
        for relative_path, text in chart.items():
            path = Path(folder) / relative_path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        request = {
            "chart": folder,
            "name": name,
            "namespace": namespace,
            "kube_version": f"v{kubernetes}.0",
            "api_versions": list(api_versions),
            "values": dict(values or {}),
        }
        result = _run_helm(python, request)
    if problem := result.get("problem"):
        raise ConfigurationError(
            f"Helm rejects the chart: {problem}",
            remedy="correct the named value in --values or in tritonctl.yaml",
        )
    texts = {
        Path(relative_path).name: text.strip()
        for relative_path, text in result["manifests"].items()
    }
    return {
        file: f"{text}\n"
        for file, text in sorted(texts.items())
        if file.endswith(".yaml") and any(yaml.safe_load_all(text))
    }


def _run_helm(python: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        process = subprocess.run(
            [python, bundled.find(_PROGRAM)],
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(
            f"Helm's library does not run on this machine: {error}",
            remedy="write only the chart (without --manifests) and run `helm template` on it",
            details=str(getattr(error, "stderr", "") or ""),
        ) from error
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def read_values(file: Path) -> dict[str, Any]:
    """Read a file of Helm values. Raises ConfigurationError."""
    try:
        if file.stat().st_size > _MAX_VALUES_BYTES:
            raise ConfigurationError(
                f"{file} is too large for a file of values", remedy="name another file"
            )
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error}", remedy="write it as YAML, as the chart's values.yaml"
        ) from error
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"{file} is not a mapping", remedy="write it as YAML, as the chart's values.yaml"
        )
    return values

# SPDX-License-Identifier: Apache-2.0
"""The manifests that the chart becomes, by Helm's own library in an environment of its own."""

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
from tritonctl.host.environments import Recipe, ensure, environment_python
from tritonctl.host.progress import Progress
from tritonctl.server.kubernetes.chart import OLDEST

NEWEST = "1.37"  # of Kubernetes, that the chart was checked against
HELM = Recipe("helm", (("helm-python-sdk==0.2.2",),), probe="import helm_python")
_PROGRAM = "docker/render_chart.py"
_SECONDS = 120
_LARGEST_VALUES = 1 << 20


def supported(version: str | None) -> str:
    """The cluster's minor version, `1.31` of `v1.31.4`. Raises UsageError for one too old."""
    if version is None:
        return NEWEST
    match = re.fullmatch(r"v?1\.(\d{1,3})(?:\.\d+.*)?", version)
    if match is None or int(match[1]) < int(OLDEST.partition(".")[2]):
        raise UsageError(
            f"--kubernetes {version}: the chart is for {OLDEST} and later",
            remedy=f"write it as {NEWEST}; `kubectl version` says what a cluster has",
        )
    return f"1.{match[1]}"


def render_manifests(
    chart: Mapping[str, str],
    name: str,
    progress: Progress,
    *,
    kubernetes: str = NEWEST,
    namespace: str = "default",
    api_versions: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Text by file name, one for each template that made something; nothing is written.

    chart: as `render_chart` makes it. name: of the installation. kubernetes: the minor version of
    the cluster. api_versions: what it has besides. values: merged over the chart's.

    Raises ConfigurationError for values that the chart refuses, HostError where Helm's library
    cannot be installed or started.
    """
    python = environment_python(ensure(HELM, progress))
    with tempfile.TemporaryDirectory(prefix="tritonctl-chart-") as folder:
        for place, text in chart.items():
            path = Path(folder) / place
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
        answer = _answer(python, request)
    if problem := answer.get("problem"):
        raise ConfigurationError(
            f"Helm refuses the chart: {problem}",
            remedy="correct the value that it names, in --values or in tritonctl.yaml",
        )
    texts = {Path(place).name: text.strip() for place, text in answer["manifests"].items()}
    return {
        file: f"{text}\n"
        for file, text in sorted(texts.items())
        if file.endswith(".yaml") and any(yaml.safe_load_all(text))
    }


def _answer(python: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, bundled.find(_PROGRAM)],
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(
            f"Helm's library does not run here: {error}",
            remedy="write the chart alone (without --manifests) and run `helm template` on it",
            details=str(getattr(error, "stderr", "") or ""),
        ) from error
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def read_values(file: Path) -> dict[str, Any]:
    """A file of values as Helm takes it. Raises ConfigurationError."""
    try:
        if file.stat().st_size > _LARGEST_VALUES:
            raise ConfigurationError(f"{file} is too large for values", remedy="name another file")
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error}", remedy="write it as YAML, as the chart's values.yaml"
        ) from error
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"{file} holds no mapping", remedy="write it as YAML, as the chart's values.yaml"
        )
    return values

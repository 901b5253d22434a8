# SPDX-License-Identifier: Apache-2.0
"""The chart of a project, rendered by Helm, checked against the schemas of Kubernetes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python
from tritonctl.host.progress import Silent
from tritonctl.runtimes.kubernetes.manifests import helm_recipe, render_manifests

VALIDATOR = EnvironmentRecipe("kubernetes-validate", (("kubernetes-validate==1.37.0",),))
OLDEST_SCHEMA, NEWEST = 25, 37  # minors of Kubernetes that the validator knows
NAME = "demo"
Manifest = dict[str, Any]
_LINT = (
    "import json, sys; from helm_python import lint; asked = json.load(sys.stdin); "
    "json.dump(lint(**asked), sys.stdout)"
)


@dataclass(frozen=True)
class Chart:
    """Relative path to text of every file."""

    files: Mapping[str, str]
    _rendered: dict[str, str] = field(default_factory=dict)

    def manifests(self, minor: int, values: Manifest | None = None, **more: Any) -> list[Manifest]:
        """What an installation called NAME becomes on Kubernetes 1.MINOR."""
        asked = json.dumps([minor, values, more])
        if asked not in self._rendered:  # Helm's library takes a second to load
            texts = render_manifests(
                self.files, NAME, Silent(), kubernetes=f"1.{minor}", values=values, **more
            )
            self._rendered[asked] = "---\n".join(texts.values())
        return [each for each in yaml.safe_load_all(self._rendered[asked]) if each]

    def lint(self, folder: Path, minor: int) -> list[dict[str, Any]]:
        """What `helm lint --strict` finds, advice apart."""
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        asked = {"path": str(folder), "strict": True, "kube_version": f"v1.{minor}.0"}
        report = _run(
            environment_python(ensure_environment(helm_recipe(), Silent())), ["-c", _LINT], asked
        )
        return [message for message in report["messages"] if message["severity"] > 1]


def refused(by_version: Mapping[str, Sequence[Manifest]]) -> list[str]:
    """What schemas of Kubernetes say against manifests, by minor version `1.31`."""
    program = Path(__file__).with_name("validate.py")
    found: list[str] = _run(
        environment_python(ensure_environment(VALIDATOR, Silent())), [program], by_version
    )
    return found


def of_kind(manifests: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """The one manifest of a kind, or of its name after NAME."""
    wanted = f"{NAME}-{name}" if name else None
    [found] = [
        each
        for each in manifests
        if each["kind"] == kind and wanted in (None, each["metadata"]["name"])
    ]
    return found


def _run(python: Path, arguments: Sequence[str | Path], asked: Any) -> Any:
    done = subprocess.run(
        [python, *arguments],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    return json.loads(done.stdout)

# SPDX-License-Identifier: Apache-2.0
"""Build a candidate's Deployments: copies of the live ones with another release.

A candidate keeps what the user's values set for the stable release, such as node selectors, claims
and limits. Differences between the two releases' charts come from the candidate's chart.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import yaml

from tritonctl.errors import ConfigurationError
from tritonctl.releases.slots import Slot
from tritonctl.runtimes.kubernetes.installation import (
    COMPONENT,
    FRONTEND,
    RELEASE,
    TRITON,
    VERSION,
)
from tritonctl.runtimes.kubernetes.kubectl import Object
from tritonctl.runtimes.kubernetes.live_installation import HELD, MANAGED, SlotInstallation
from tritonctl.runtimes.kubernetes.resource_requests import quantity
from tritonctl.runtimes.kubernetes.slots import name_in_slot

_CONFIGURATION = "tritonctl/configuration"
_EXIT = "--exit-timeout-secs="
_GRPC = 8001


@dataclass(frozen=True)
class ChartRelease:
    """A release as described by its chart."""

    address: str  # NAME@sha256:DIGEST
    arguments: tuple[str, ...]  # of tritonserver, with placeholders
    values: Mapping[str, Any]
    frontend: str | None  # text of the OpenAI API's configuration; None without one

    @classmethod
    def of(cls, files: Mapping[str, str]) -> Self:
        """Read a release from its chart's files, path to text."""
        values = yaml.safe_load(files["values.yaml"])
        arguments = tuple(json.loads(files["files/arguments.json"]))
        return cls(values["release"], arguments, values, files.get("files/frontend.json"))

    @property
    def name(self) -> str:
        """The release's name without the digest."""
        return self.address.partition("@")[0]


@dataclass(frozen=True)
class CandidateObjects:
    """Builds a candidate's objects in a slot from the baseline's live objects."""

    installed: SlotInstallation
    baseline: ChartRelease
    candidate: ChartRelease
    slot: Slot

    def triton(self, live: Object) -> Object:
        """Return the Deployment of the candidate's servers, from the live one.

        Raises ConfigurationError if the registry of a required image is unknown.
        """
        deployment = self._copied_deployment(TRITON, live)
        pod = deployment["spec"]["template"]["spec"]
        server, weights = pod["containers"][0], pod["initContainers"][0]
        image = self._image(server["image"], "triton")
        server["image"] = weights["image"] = image
        server["args"] = self._arguments(server["args"])
        weights["command"] = [self._with_release(word) for word in weights["command"]]
        for limits in server["resources"].values():
            limits["memory"] = self._size(limits.get("memory", ""), "memory")
        for volume in pod["volumes"]:
            if volume["name"] == "shm":
                volume["emptyDir"]["sizeLimit"] = self._size(
                    volume["emptyDir"].get("sizeLimit", ""), "shm"
                )
        probe = server["startupProbe"]
        period = probe.get("periodSeconds", 1)
        seconds = self.candidate.values["triton"]["startupSeconds"]
        probe["failureThreshold"] = max(probe.get("failureThreshold", 1), -(-seconds // period))
        return deployment

    def frontend(self, live: Object, stable: Slot) -> list[Object]:
        """Return the frontend's ConfigMap and Deployment, with stable as fallback for streams."""
        deployment = self._copied_deployment(FRONTEND, live)
        text = self._configuration(stable)
        name = f"{self.installed.object_name(FRONTEND)}-{self.slot}-configuration"
        template = deployment["spec"]["template"]
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        template["metadata"]["annotations"][_CONFIGURATION] = digest
        pod = template["spec"]
        image = self._image(pod["containers"][0]["image"], "frontend")
        for container in (*pod["containers"], *pod["initContainers"]):
            container["image"] = image
        weights = pod["initContainers"][0]
        weights["command"] = [self._with_release(word) for word in weights["command"]]
        for volume in pod["volumes"]:
            if volume["name"] == "configuration":
                volume["configMap"]["name"] = name
        configuration = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": deployment["metadata"]["labels"]},
            "data": {"frontend.json": text},
        }
        return [configuration, deployment]

    def autoscaler(self, live: Object) -> Object:
        """Return the HPA of slot b, a copy of slot a's; it is idle while there are no pods."""
        meta = live["metadata"]
        annotations = {
            name: value
            for name, value in (meta.get("annotations") or {}).items()
            if name.startswith("autoscaling.")  # the oldest API version keeps its metrics there
        }
        name = self.installed.object_name(TRITON, self.slot)
        target = {**live["spec"]["scaleTargetRef"], "name": name}
        return {
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "metadata": {"name": name, "labels": self.installed.labels, "annotations": annotations},
            "spec": {**live["spec"], "scaleTargetRef": target},
        }

    def _copied_deployment(self, part: str, live: Object) -> Object:
        component = name_in_slot(part, self.slot)
        spec = copy.deepcopy(live["spec"])
        template = spec["template"]
        labels = {**live["metadata"].get("labels", {}), COMPONENT: component}
        labels.pop(MANAGED, None)
        spec["selector"]["matchLabels"][COMPONENT] = component
        template["metadata"]["labels"] |= {COMPONENT: component, VERSION: self.candidate.name}
        annotations = template["metadata"].setdefault("annotations", {})
        annotations[RELEASE] = self.candidate.address
        for spread in template["spec"].get("topologySpreadConstraints", []):
            spread["labelSelector"]["matchLabels"][COMPONENT] = component
        spec["paused"] = False
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": self.installed.object_name(part, self.slot),
                "labels": labels,
                "annotations": {HELD: "a rollout"},
            },
            "spec": spec,
        }

    def _arguments(self, live: list[str]) -> list[str]:
        """Return the candidate's arguments, with the live installation's exit timeout."""
        exit_timeout = [word for word in live if word.startswith(_EXIT)]
        words = [word for word in self.candidate.arguments if not word.startswith(_EXIT)]
        arguments = [word.replace("__RELEASE__", self.candidate.name) for word in words]
        return [live[0], *arguments, *exit_timeout]

    def _with_release(self, word: str) -> str:
        return f"--release={self.candidate.address}" if word.startswith("--release=") else word

    def _image(self, live: str, part: str) -> str:
        baseline_image, candidate_image = (
            each.values["images"][part] for each in (self.baseline, self.candidate)
        )
        if baseline_image == candidate_image:
            return live
        if live == baseline_image:
            return str(candidate_image)
        tags = [str(each).rpartition(":")[2] for each in (baseline_image, candidate_image)]
        if live.endswith(f":{tags[0]}"):
            return live.removesuffix(tags[0]) + tags[1]
        raise ConfigurationError(
            f"release {self.candidate.name} needs the image {candidate_image}, and the servers now "
            f"run {live}, whose name does not reveal where the cluster can pull the other image",
            remedy=f"push it to the repository of {live} with the tag {tags[1]}, and name the "
            f"image of the stable release by its tag, {tags[0]}, in your file of values",
        )

    def _size(self, live: str, value: str) -> str:
        """Return the candidate's size, unless the installation overrides the baseline's."""
        baseline_size, candidate_size = (
            each.values["triton"][value] for each in (self.baseline, self.candidate)
        )
        return str(candidate_size) if _are_equal_quantities(live, baseline_size) else live

    def _configuration(self, stable: Slot) -> str:
        text = (self.candidate.frontend or "").replace("__RELEASE__", self.candidate.name)
        config = json.loads(
            text.replace("__TRITON__", self.installed.object_name(TRITON, self.slot))
        )
        config["fallbacks"] = [f"{self.installed.object_name(TRITON, stable)}:{_GRPC}"]
        return json.dumps(config, indent=2) + "\n"


def _are_equal_quantities(live: str, charted: str) -> bool:
    """Compare two quantities, as a cluster may write 1024Mi as 1Gi; False for other text."""
    try:
        return quantity(live) == quantity(charted)
    except ValueError:
        return False

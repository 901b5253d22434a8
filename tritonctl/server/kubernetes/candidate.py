# SPDX-License-Identifier: Apache-2.0
"""A candidate's Deployments: copies of those that serve, but for the release and what it needs.

So a candidate has what the user's values gave the stable release: node selectors, claims, limits.
What the two charts of both releases differ in, it has of its own.
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
from tritonctl.server.kubernetes.demand import quantity
from tritonctl.server.kubernetes.installation import (
    COMPONENT,
    FRONTEND,
    RELEASE,
    TRITON,
    VERSION,
)
from tritonctl.server.kubernetes.installed import HELD, MANAGED, Installed
from tritonctl.server.kubernetes.kubectl import Object
from tritonctl.server.kubernetes.slots import in_slot
from tritonctl.server.slots import Slot

_CONFIGURATION = "tritonctl/configuration"
_EXIT = "--exit-timeout-secs="
_GRPC = 8001


@dataclass(frozen=True)
class Charted:
    """A release, as its chart describes it.

    address: NAME@sha256:DIGEST. arguments: of tritonserver, with placeholders. frontend: text of
    the OpenAI API's configuration, None where the project has none.
    """

    address: str
    arguments: tuple[str, ...]
    values: Mapping[str, Any]
    frontend: str | None

    @classmethod
    def of(cls, files: Mapping[str, str]) -> Self:
        """Read it from the chart's files: text by path."""
        values = yaml.safe_load(files["values.yaml"])
        arguments = tuple(json.loads(files["files/arguments.json"]))
        return cls(values["release"], arguments, values, files.get("files/frontend.json"))

    @property
    def name(self) -> str:
        """Without the digest."""
        return self.address.partition("@")[0]


@dataclass(frozen=True)
class Copying:
    """Turns the objects of the release that serves into those of another release, in a slot."""

    installed: Installed
    served: Charted
    wanted: Charted
    slot: Slot

    def triton(self, live: Object) -> Object:
        """The Deployment of its servers, by that of the live ones.

        Raises ConfigurationError where the release needs an image that nobody has named.
        """
        made = self._copied(TRITON, live)
        pod = made["spec"]["template"]["spec"]
        server, weights = pod["containers"][0], pod["initContainers"][0]
        image = self._image(server["image"], "triton")
        server["image"] = weights["image"] = image
        server["args"] = self._arguments(server["args"])
        weights["command"] = [self._verified(word) for word in weights["command"]]
        for limits in server["resources"].values():
            limits["memory"] = self._size(limits.get("memory", ""), "memory")
        for volume in pod["volumes"]:
            if volume["name"] == "shm":
                volume["emptyDir"]["sizeLimit"] = self._size(
                    volume["emptyDir"].get("sizeLimit", ""), "shm"
                )
        probe = server["startupProbe"]
        period = probe.get("periodSeconds", 1)
        seconds = self.wanted.values["triton"]["startupSeconds"]
        probe["failureThreshold"] = max(probe.get("failureThreshold", 1), -(-seconds // period))
        return made

    def frontend(self, live: Object, stable: Slot) -> list[Object]:
        """The frontend's ConfigMap and Deployment; a dead candidate's streams go on at stable."""
        made = self._copied(FRONTEND, live)
        text = self._configuration(stable)
        name = f"{self.installed.called(FRONTEND)}-{self.slot}-configuration"
        template = made["spec"]["template"]
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        template["metadata"]["annotations"][_CONFIGURATION] = digest
        pod = template["spec"]
        image = self._image(pod["containers"][0]["image"], "frontend")
        for container in (*pod["containers"], *pod["initContainers"]):
            container["image"] = image
        weights = pod["initContainers"][0]
        weights["command"] = [self._verified(word) for word in weights["command"]]
        for volume in pod["volumes"]:
            if volume["name"] == "configuration":
                volume["configMap"]["name"] = name
        configuration = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": made["metadata"]["labels"]},
            "data": {"frontend.json": text},
        }
        return [configuration, made]

    def autoscaler(self, live: Object) -> Object:
        """An HPA for slot b, as the chart has one for slot a; idle while there are no pods."""
        meta = live["metadata"]
        notes = {
            name: value
            for name, value in (meta.get("annotations") or {}).items()
            if name.startswith("autoscaling.")  # where the oldest version keeps its metrics
        }
        name = self.installed.called(TRITON, self.slot)
        target = {**live["spec"]["scaleTargetRef"], "name": name}
        return {
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "metadata": {"name": name, "labels": self.installed.labels, "annotations": notes},
            "spec": {**live["spec"], "scaleTargetRef": target},
        }

    def _copied(self, part: str, live: Object) -> Object:
        component = in_slot(part, self.slot)
        spec = copy.deepcopy(live["spec"])
        template = spec["template"]
        labels = {**live["metadata"].get("labels", {}), COMPONENT: component}
        labels.pop(MANAGED, None)
        spec["selector"]["matchLabels"][COMPONENT] = component
        template["metadata"]["labels"] |= {COMPONENT: component, VERSION: self.wanted.name}
        notes = template["metadata"].setdefault("annotations", {})
        notes[RELEASE] = self.wanted.address
        for spread in template["spec"].get("topologySpreadConstraints", []):
            spread["labelSelector"]["matchLabels"][COMPONENT] = component
        spec["paused"] = False
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": self.installed.called(part, self.slot),
                "labels": labels,
                "annotations": {HELD: "a rollout"},
            },
            "spec": spec,
        }

    def _arguments(self, live: list[str]) -> list[str]:
        """Those of the candidate's chart, but the installation's own time for streams to end."""
        kept = [word for word in live if word.startswith(_EXIT)]
        words = [word for word in self.wanted.arguments if not word.startswith(_EXIT)]
        named = [word.replace("__RELEASE__", self.wanted.name) for word in words]
        return [live[0], *named, *kept]

    def _verified(self, word: str) -> str:
        return f"--release={self.wanted.address}" if word.startswith("--release=") else word

    def _image(self, live: str, part: str) -> str:
        before, after = (each.values["images"][part] for each in (self.served, self.wanted))
        if before == after:
            return live
        if live == before:
            return str(after)
        tags = [str(each).rpartition(":")[2] for each in (before, after)]
        if live.endswith(f":{tags[0]}"):
            return live.removesuffix(tags[0]) + tags[1]
        raise ConfigurationError(
            f"release {self.wanted.name} needs the image {after}, and the servers now run {live}, "
            "whose name does not say where the cluster can pull the other one",
            remedy=f"push it to the repository of {live} with the tag {tags[1]}, and name the "
            f"image of the stable release by its tag, {tags[0]}, in your file of values",
        )

    def _size(self, live: str, value: str) -> str:
        """The release's own, unless somebody has chosen another one for the installation."""
        before, after = (each.values["triton"][value] for each in (self.served, self.wanted))
        return str(after) if _are_equal(live, before) else live

    def _configuration(self, stable: Slot) -> str:
        text = (self.wanted.frontend or "").replace("__RELEASE__", self.wanted.name)
        config = json.loads(text.replace("__TRITON__", self.installed.called(TRITON, self.slot)))
        config["fallbacks"] = [f"{self.installed.called(TRITON, stable)}:{_GRPC}"]
        return json.dumps(config, indent=2) + "\n"


def _are_equal(live: str, charted: str) -> bool:
    """A cluster may write 1024Mi as 1Gi. What is no quantity is nobody's chart's."""
    try:
        return quantity(live) == quantity(charted)
    except ValueError:
        return False

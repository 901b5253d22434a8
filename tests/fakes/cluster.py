# SPDX-License-Identifier: Apache-2.0
"""A kubectl for tests that remembers: objects in a file, changed as kubectl would change them.

Deployments are ready as soon as they are made, unless `state["ready"]` is false. `state["down"]` is
how many more commands find no cluster. Pods are what the test says they are.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Object = dict[str, Any]
_VERSION = "app.kubernetes.io/version"
_ALWAYS = ("--request-timeout=", "--context=", "--namespace=", "--output=")


class FakeCluster:
    """Its objects, by `kind/name`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "kubectl"
        program.write_text(
            f'#!/bin/sh\nexec {sys.executable} -I -S {Path(__file__)} {folder} "$@"\n',
            encoding="utf-8",
        )
        program.chmod(0o755)
        self.write({"objects": {}, "pods": [], "down": 0, "ready": True, "asked": []})

    @property
    def state(self) -> Object:
        """All of it."""
        state: Object = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
        return state

    def write(self, state: Object) -> None:
        """Change all of it."""
        (self.folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def set(self, **changed: Any) -> None:
        """Change some of it."""
        self.write(self.state | changed)

    def add(self, kind: str, name: str, /, **content: Any) -> None:
        """An object."""
        state = self.state
        meta = {"name": name, "uid": f"uid-{name}", **content.pop("metadata", {})}
        state["objects"][f"{kind}/{name}"] = {"metadata": meta, **content}
        self.write(state)

    def get(self, kind: str, name: str) -> Object:
        """An object as it is now."""
        found: Object = self.state["objects"][f"{kind}/{name}"]
        return found

    def asked(self, verb: str) -> list[list[str]]:
        """Command lines that begin so."""
        return [words for words in self.state["asked"] if words[0] == verb]


def merged(target: Any, change: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(change, Mapping):
        return change
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _settled(kind: str, found: Object, *, ready: bool) -> Object:
    if kind == "deployment":
        count = found["spec"].get("replicas", 1)
        generation = found["metadata"].get("generation", 0) + 1
        found["metadata"]["generation"] = generation
        found["status"] = {"observedGeneration": generation}
        if ready:
            found["status"] |= dict.fromkeys(
                ("replicas", "updatedReplicas", "readyReplicas"), count
            )
    return found


def _main(folder: Path, arguments: list[str]) -> int:
    file = folder / "state.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    words = [word for word in arguments if not word.startswith(_ALWAYS)]
    state["asked"].append(words)
    if state["down"]:
        state["down"] -= 1
        _keep(file, state)
        sys.stderr.write("Unable to connect to the server: dial tcp: connection refused\n")
        return 1
    if words[0] == "port-forward":
        return _forward(state["ports"], words)
    answer = _answer(state, words)
    _keep(file, state)
    if answer is None:
        sys.stderr.write(f'Error from server (NotFound): "{" ".join(words[:3])}" not found\n')
        return 1
    sys.stdout.write(answer if isinstance(answer, str) else json.dumps(answer))
    return 0


def _keep(file: Path, state: Object) -> None:
    fresh = file.with_name(f"state-{os.getpid()}")
    fresh.write_text(json.dumps(state), encoding="utf-8")
    fresh.replace(file)


def _answer(state: Object, words: list[str]) -> Any:
    objects, verb = state["objects"], words[0]
    if verb in ("auth", "annotate", "delete"):
        return "done"
    if verb == "get" and words[1] == "pods":
        option = next(word for word in words if word.startswith("--selector="))
        wanted = dict(each.split("=") for each in option.partition("=")[2].split(","))
        component = wanted["app.kubernetes.io/component"]
        version = wanted.get(_VERSION)
        return {
            "items": [
                pod
                for pod in state["pods"]
                if pod["component"] == component
                and version in (None, pod["metadata"]["labels"][_VERSION])
            ]
        }
    if verb == "get":
        return objects.get(f"{words[1]}/{words[2]}")
    if verb in ("apply", "create"):
        given = json.loads(sys.stdin.read())
        items = given.get("items", [given])
        for each in items:
            kind = each["kind"].lower()
            objects[f"{kind}/{each['metadata']['name']}"] = _settled(
                kind, copy.deepcopy(each), ready=state["ready"]
            )
        return {"kind": "List", "items": items}
    [kind, name] = words[1:3]
    found = objects.get(f"{kind}/{name}")
    if verb != "patch" or found is None:
        return None
    change = json.loads(next(w for w in words if w.startswith("--patch=")).partition("=")[2])
    if isinstance(change, list):
        for each in change:
            found[each["path"].strip("/")] = each["value"]
    else:
        found = merged(found, change)
    objects[f"{kind}/{name}"] = _settled(kind, found, ready=state["ready"])
    return found


def _forward(ports: Mapping[str, int], words: list[str]) -> int:
    """The test's own server answers on that port."""
    port = ports[next(word for word in words if word.startswith("pod/"))]
    sys.stdout.write(f"Forwarding from 127.0.0.1:{port} -> 8002\n")
    sys.stdout.flush()
    signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2:]))

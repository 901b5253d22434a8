# SPDX-License-Identifier: Apache-2.0
"""Which manifests a version of Kubernetes refuses: its own schemas, no field unknown.

Run by an environment that has kubernetes-validate. Standard input, JSON: manifests by minor
version. Standard output, JSON: a line for each mistake.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

import kubernetes_validate
from kubernetes_validate import utils

# Reading the definitions takes most of the time, and they are the same for every manifest.
utils.schema_contents = cache(utils.schema_contents)


def mistakes(version: str, manifest: dict[str, Any]) -> list[str]:
    """Of one manifest: none, or where and what."""
    name = f"{version} {manifest['kind']} {manifest['metadata']['name']}"
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{name}: {'.'.join(map(str, error.path))}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError as error:
        return [f"{name}: {error.message}"]
    return []


asked: dict[str, list[dict[str, Any]]] = json.load(sys.stdin)
found = [
    line for version, each in asked.items() for manifest in each
    for line in mistakes(version, manifest)
]  # fmt: skip
json.dump(found, sys.stdout)

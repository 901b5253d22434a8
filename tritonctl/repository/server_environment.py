# SPDX-License-Identifier: Apache-2.0
"""The environment that the embedded server shares with the stubs of its Python backends."""

from __future__ import annotations

from collections.abc import Sequence

from tritonctl.host.environments import Recipe
from tritonctl.repository.backends import PythonBackend

SERVER_VERSION = "2.51.0"
# The wheel's own requirements serve PyTriton's API, which is not used: hence --no-deps.
_WHEEL = ("--no-deps", "nvidia-pytriton==0.7.0")


def server_recipe(backends: Sequence[PythonBackend]) -> Recipe:
    """The environment that server and stubs share: stubs find packages through its python3."""
    requirements = [part for b in backends for part in ("-r", str(b.requirements))]
    return Recipe("server", (_WHEEL, tuple(requirements)))

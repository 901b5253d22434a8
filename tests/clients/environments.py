# SPDX-License-Identifier: Apache-2.0
"""The environments of other people's clients: pinned, made on first use, in the user's cache."""

from __future__ import annotations

from pathlib import Path

from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, environment_python
from tritonctl.host.progress import Silent

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"


def client_python(name: str) -> Path:
    """The interpreter of one of them. Raises HostError when it cannot be installed."""
    recipe = EnvironmentRecipe(f"client-{name}", (("-r", f"{name}.txt"),), folder=REQUIREMENTS)
    return environment_python(ensure_environment(recipe, Silent()))

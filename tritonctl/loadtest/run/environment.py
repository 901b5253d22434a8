# SPDX-License-Identifier: Apache-2.0
"""The load generators: their folder and their environment."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

from tritonctl.host import bundled
from tritonctl.host.environments import (
    EnvironmentRecipe,
    ensure_environment,
    environment_folder,
    environment_python,
    is_installed,
    site_packages,
)
from tritonctl.host.progress import Progress
from tritonctl.host.requirements import verified_install_arguments
from tritonctl.host.version import __version__

# Programs with the same arguments: --plan, --output, --worker, --workers.
_PROGRAMS = {"asyncio": "generator.py", "locust": "locust_generator.py"}


def generator_folder() -> Path:
    """Return the folder of the bundled generators."""
    return bundled.find("loadtests/generator.py").parent


def generator_recipe() -> EnvironmentRecipe:
    """Return the recipe of the generators' environment."""
    return EnvironmentRecipe(
        "loadtest", (verified_install_arguments("requirements.lock"),), folder=generator_folder()
    )


def generator_python(progress: Progress) -> Path:
    """Return the generators' interpreter; create its environment if needed. Raises HostError."""
    recipe = generator_recipe()
    if not is_installed(recipe):
        progress.note(
            "creating the load generators' environment (asyncio and Locust): "
            f"240 MB in {environment_folder(recipe)}, once"
        )
    return environment_python(ensure_environment(recipe, progress))


def generator_program(engine: str) -> str:
    """Return the path of an engine's generator."""
    return str(generator_folder() / _PROGRAMS[engine])


def generator_facts(engine: str, python: Path) -> dict[str, str]:
    """Return name and version of a generator: tritonctl's version, or Locust's."""
    version = __version__
    if engine == "locust":
        packages = str(site_packages(python.parent.parent))
        versions = [d.version for d in distributions(name="locust", path=[packages])]
        version = versions[0] if versions else "unknown"
    return {"engine": engine, "version": version}

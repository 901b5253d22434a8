# SPDX-License-Identifier: Apache-2.0
"""The load generators: their folder and their environment."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

from tritonctl.host import bundled
from tritonctl.host.environments import (
    Recipe,
    ensure,
    environment_python,
    folder_of,
    is_made,
    site_packages,
)
from tritonctl.host.progress import Progress
from tritonctl.host.version import __version__

# Programs with the same arguments: --plan, --output, --worker, --workers.
_PROGRAMS = {"asyncio": "generator.py", "locust": "locust_generator.py"}


def generators() -> Path:
    """The folder of the shipped generators."""
    return bundled.find("loadtests/generator.py").parent


def recipe() -> Recipe:
    """The environment of the generators."""
    return Recipe("loadtest", (("-r", "requirements.txt"),), folder=generators())


def generator_python(progress: Progress) -> Path:
    """The interpreter of the generators; makes their environment if necessary. HostError."""
    wanted = recipe()
    if not is_made(wanted):
        progress.note(
            "load tests send from an environment of their own (asyncio and Locust generators): "
            f"240 MB in {folder_of(wanted)}, once"
        )
    return environment_python(ensure(wanted, progress))


def generator_program(engine: str) -> str:
    """The path of the generator of that engine."""
    return str(generators() / _PROGRAMS[engine])


def generator_facts(engine: str, python: Path) -> dict[str, str]:
    """Name and version of a generator: ours has tritonctl's version, Locust its own."""
    version = __version__
    if engine == "locust":
        packages = str(site_packages(python.parent.parent))
        versions = [d.version for d in distributions(name="locust", path=[packages])]
        version = versions[0] if versions else "unknown"
    return {"engine": engine, "version": version}

# SPDX-License-Identifier: Apache-2.0
"""A benchmark's project on a real Triton, with NVIDIA's perf_analyzer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import SILENT, running
from measure import PerfAnalyzer
from tritonctl import Project
from tritonctl.host.environments import EnvironmentRecipe, ensure_environment, site_packages
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.server_environment import server_recipe

_PERF_ANALYZER = EnvironmentRecipe("perf-analyzer", (("--no-deps", "tritonclient==2.51.0"),))
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@contextmanager
def started(
    project: Project, folder: Path, cores: set[int] | None = None
) -> Iterator[PerfAnalyzer]:
    """perf_analyzer for the project's server, which runs on these cores."""
    with running(project, cores) as state:
        backends = plan_repository(project).backends
        packages = site_packages(ensure_environment(server_recipe(backends), SILENT))
        binary = ensure_environment(_PERF_ANALYZER, SILENT) / "bin" / "perf_analyzer"
        libraries = _link_libraries(packages / "nvidia_pytriton.libs", folder / "libraries")
        yield PerfAnalyzer(binary, libraries, state.grpc_url, state.shm_prefix)


def _link_libraries(wheel: Path, folder: Path) -> Path:
    """Name the libraries in the server's wheel as perf_analyzer expects them."""
    folder.mkdir()
    for name, pattern in _LIBRARIES.items():
        (folder / name).symlink_to(next(wheel.glob(pattern)))
    return folder

# SPDX-License-Identifier: Apache-2.0
"""A benchmark's project in a real Triton, and NVIDIA's perf_analyzer beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tritonctl.console.voice import Console
from tritonctl.host.environments import Recipe, ensure, site_packages
from tritonctl.project.schema import Project
from tritonctl.repository.publish import render
from tritonctl.repository.server_environment import server_recipe
from tritonctl.server.lifecycle import start, stop

from measure import PerfAnalyzer

_PERF_ANALYZER = Recipe("perf-analyzer", (("--no-deps", "tritonclient==2.51.0"),))
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@contextmanager
def started(project: Project, folder: Path, console: Console) -> Iterator[PerfAnalyzer]:
    """Render, start, and stop at the end; every model is built already."""
    rendered = render(project, console)
    state, _ = start(project, rendered, console)
    try:
        packages = site_packages(ensure(server_recipe(rendered.plan.backends), console))
        binary = ensure(_PERF_ANALYZER, console) / "bin" / "perf_analyzer"
        libraries = _link_libraries(packages / "nvidia_pytriton.libs", folder / "libraries")
        yield PerfAnalyzer(binary, libraries, state.grpc_url, state.shm_prefix)
    finally:
        stop(project, console)


def _link_libraries(wheel: Path, folder: Path) -> Path:
    """perf_analyzer links against libraries that the server's wheel has under other names."""
    folder.mkdir()
    for name, pattern in _LIBRARIES.items():
        (folder / name).symlink_to(next(wheel.glob(pattern)))
    return folder


def say(*cells: object) -> None:
    """One row of a Markdown table."""
    sys.stdout.write("| " + " | ".join(str(cell) for cell in cells) + " |\n")
    sys.stdout.flush()

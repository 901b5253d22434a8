# SPDX-License-Identifier: Apache-2.0
"""Install the embedded tritonserver: Triton 2.51 from nvidia-pytriton's wheel, for laptops.

It uses only the wheel's binaries, not PyTriton's Python API. The release predates the security
fixes of 2025: it is a development server and stays on loopback.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.host.environments import ensure_environment, site_packages
from tritonctl.host.files import as_host_error
from tritonctl.host.interpreters import install_hint
from tritonctl.host.progress import Progress
from tritonctl.repository.server_environment import PYTHONS, StubProgram, server_recipe

BACKEND = "python"  # the only one of the wheel
_LOADER_EXIT_CODE = 127

# Weights and activations in 2 MB pages, if Linux grants them on request (`madvise`, the usual
# setting): a graph of 256 tokens takes 3 to 8 % less CPU time. As in docker/*.Dockerfile.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass(frozen=True)
class ServerInstallation:
    """A usable server."""

    binary: Path
    backends: Path  # folder with the backends
    caches: Path  # folder with the cache libraries
    environment: dict[str, str]  # all environment variables of the server


def install_server(programs: Sequence[StubProgram], progress: Progress) -> ServerInstallation:
    """Install the server and the packages of these programs, unless they are installed.

    Raises HostError if the installation fails or this machine cannot run Triton's stubs.
    """
    recipe = server_recipe(programs)
    environment = ensure_environment(recipe, progress)
    packages = site_packages(environment)
    triton = packages / "pytriton" / "tritonserver"
    folder = _backend_folder(environment, triton, recipe.python.minor)
    variables = server_variables(
        environment, [packages / "nvidia_pytriton.libs", *recipe.python.libraries]
    )
    _check_stub(folder / "python" / "triton_python_backend_stub", variables, recipe.python.minor)
    return ServerInstallation(triton / "bin" / "tritonserver", folder, triton / "caches", variables)


def _backend_folder(environment: Path, triton: Path, version: str) -> Path:
    """Merge library, utilities and stub into the one folder that Triton expects."""
    folder = environment / "tritonserver-backends"
    if folder.is_dir():
        return folder
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise HostError(
            f"the embedded server has no Python backend stub for Python {version}",
            remedy=install_hint(PYTHONS),
        )
    with as_host_error(folder):
        staging = Path(tempfile.mkdtemp(dir=environment, prefix="backends."))
        shutil.copytree(triton / "backends" / BACKEND, staging / BACKEND)
        shutil.copy2(stub, staging / "python" / stub.name)
        (staging / "python" / stub.name).chmod(0o755)
        if not folder.is_dir():
            os.rename(staging, folder)
    return folder


def server_variables(environment: Path, libraries: Sequence[Path]) -> dict[str, str]:
    """Return this process's variables plus the server's paths, with Hugging Face offline."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return (
        HUGE_PAGES
        | inherited
        | {
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in libraries),
            "HF_HUB_OFFLINE": "1",
        }
    )


def _check_stub(stub: Path, variables: dict[str, str], version: str) -> None:
    """Raise HostError if the loader cannot start the stub, which then exits with 127."""
    # Otherwise a stub without its libraries fails much later, as "model load timeout".
    result = subprocess.run(
        [stub], env=variables, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if result.returncode == _LOADER_EXIT_CODE:
        raise HostError(
            f"Triton's Python stub cannot run here: {result.stderr.strip().rsplit(': ', 2)[-2:]}",
            remedy=f"it needs glibc >= 2.35 and a shared libpython{version}.so: on Debian or "
            f"Ubuntu `apt install libpython{version}`, with pyenv build with --enable-shared",
            details=result.stderr.strip(),
        )

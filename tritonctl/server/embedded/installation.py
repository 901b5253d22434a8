# SPDX-License-Identifier: Apache-2.0
"""The embedded tritonserver: a real Triton 2.51 out of nvidia-pytriton's wheel, for laptops.

Only the wheel's binaries are used, not PyTriton's Python API. The release predates the security
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
from tritonctl.host.environments import ensure, site_packages
from tritonctl.host.files import explained
from tritonctl.host.interpreters import how_to_get
from tritonctl.host.progress import Progress
from tritonctl.repository.server_environment import PYTHONS, Program, server_recipe

_LOADER_FAILED = 127

# Weights and activations in pages of 2 MB, where Linux gives them to who asks (`madvise`, the usual
# setting): a graph of 256 tokens takes 3 to 8 % less processor time. As docker/*.Dockerfile.
PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass(frozen=True)
class Installation:
    """A usable server: its binary, its backends and caches, the environment variables it needs."""

    binary: Path
    backends: Path
    caches: Path
    environment: dict[str, str]


def install(programs: Sequence[Program], progress: Progress) -> Installation:
    """Install the server and what these programs import, unless done.

    Raises HostError when they cannot be installed or this interpreter cannot run Triton's stubs.
    """
    recipe = server_recipe(programs)
    environment = ensure(recipe, progress)
    packages = site_packages(environment)
    triton = packages / "pytriton" / "tritonserver"
    folder = _backend_folder(environment, triton, recipe.python.minor)
    variables = server_variables(
        environment, [packages / "nvidia_pytriton.libs", *recipe.python.libraries]
    )
    _probe_stub(folder / "python" / "triton_python_backend_stub", variables, recipe.python.minor)
    return Installation(triton / "bin" / "tritonserver", folder, triton / "caches", variables)


def _backend_folder(environment: Path, triton: Path, version: str) -> Path:
    """Triton looks for library, utilities and stub in one folder; the wheel keeps them apart."""
    folder = environment / "tritonserver-backends"
    if folder.is_dir():
        return folder
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise HostError(
            f"the embedded server has no Python backend stub for Python {version}",
            remedy=how_to_get(PYTHONS),
        )
    with explained(folder):
        staging = Path(tempfile.mkdtemp(dir=environment, prefix="backends."))
        shutil.copytree(triton / "backends" / "python", staging / "python")
        shutil.copy2(stub, staging / "python" / stub.name)
        (staging / "python" / stub.name).chmod(0o755)
        if not folder.is_dir():
            os.rename(staging, folder)
    return folder


def server_variables(environment: Path, libraries: Sequence[Path]) -> dict[str, str]:
    """This process's, and what the server needs: its programs, its libraries, no calls home."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return (
        PAGES
        | kept
        | {
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in libraries),
            "HF_HUB_OFFLINE": "1",
        }
    )


def _probe_stub(stub: Path, variables: dict[str, str], version: str) -> None:
    """A stub without arguments complains and ends; one that the loader refuses ends with 127."""
    # A stub that cannot even find its libraries would fail much later, as "model load timeout".
    done = subprocess.run(
        [stub], env=variables, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode == _LOADER_FAILED:
        raise HostError(
            f"Triton's Python stub cannot run here: {done.stderr.strip().rsplit(': ', 2)[-2:]}",
            remedy=f"it needs glibc >= 2.35 and a shared libpython{version}.so: on Debian or "
            f"Ubuntu `apt install libpython{version}`, with pyenv build with --enable-shared",
            details=done.stderr.strip(),
        )

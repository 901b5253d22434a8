# SPDX-License-Identifier: Apache-2.0
"""Move the server from nvidia-pytriton's package to the paths of NVIDIA's image.

Runs in the CPU image's build, in the environment that has the package.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

TARGET = Path("/opt/tritonserver")
STUB = "triton_python_backend_stub"


def main() -> None:
    """Create /opt/tritonserver/{bin,lib,backends,caches}; exit with a message on failure."""
    packages = Path(sysconfig.get_paths()["purelib"])
    package = packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = package / "python_backend_stubs" / version / STUB
    if not stub.is_file():
        sys.exit(f"no Python backend stub for Python {version}: use a base with 3.11/3.12")
    TARGET.mkdir(parents=True)
    for name in ("bin", "backends", "caches"):
        shutil.move(package / name, TARGET / name)
    stub_target = TARGET / "backends" / "python" / STUB
    shutil.copy2(stub, stub_target)
    for program in (stub_target, TARGET / "bin" / "tritonserver"):
        program.chmod(0o755)
    # Binaries built for bin/../lib find their libraries; stubs need LD_LIBRARY_PATH.
    shutil.move(packages / "nvidia_pytriton.libs", TARGET / "lib")
    for leftover in packages.glob("*pytriton*"):
        shutil.rmtree(leftover)


if __name__ == "__main__":
    main()

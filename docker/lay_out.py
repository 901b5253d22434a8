# SPDX-License-Identifier: Apache-2.0
"""Moves the server out of nvidia-pytriton's package to where NVIDIA's image has it.

Run while the CPU image is built, by the environment that has the package.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

TARGET = Path("/opt/tritonserver")
STUB = "triton_python_backend_stub"


def main() -> None:
    """Lay out /opt/tritonserver/{bin,lib,backends,caches}; ends with a message if it cannot."""
    packages = Path(sysconfig.get_paths()["purelib"])
    package = packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = package / "python_backend_stubs" / version / STUB
    if not stub.is_file():
        sys.exit(f"no Python backend stub for Python {version}: use a base with 3.11/3.12")
    TARGET.mkdir(parents=True)
    for name in ("bin", "backends", "caches"):
        shutil.move(package / name, TARGET / name)
    placed = TARGET / "backends" / "python" / STUB
    shutil.copy2(stub, placed)
    for program in (placed, TARGET / "bin" / "tritonserver"):
        program.chmod(0o755)
    # What was built for bin/../lib finds its libraries; stubs need LD_LIBRARY_PATH.
    shutil.move(packages / "nvidia_pytriton.libs", TARGET / "lib")
    for rest in packages.glob("*pytriton*"):
        shutil.rmtree(rest)


if __name__ == "__main__":
    main()

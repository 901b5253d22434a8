# SPDX-License-Identifier: Apache-2.0
"""What an interpreter says of itself. A program, too, that any Python 3.9 or later can run."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from typing import List, Tuple  # noqa: UP035 - see above


def facts() -> Tuple[str, List[int], List[str]]:  # noqa: UP006
    """Its place behind any shim, its version, the folder of its shared library if it has one."""
    home = sysconfig.get_config_var
    version = list(sys.version_info[:3])
    name = f"libpython{version[0]}.{version[1]}.so.1.0"
    # Debian keeps it in the folder of the architecture, uv and conda beside the standard library.
    folders = [home("LIBDIR") or "", os.path.join(sys.base_prefix, "lib")]  # noqa: PTH118
    folders += [os.path.join(folder, home("MULTIARCH") or "") for folder in folders]  # noqa: PTH118
    found = [f for f in folders if os.path.isfile(os.path.join(f, name))]  # noqa: PTH113, PTH118
    return sys.executable, version, found[:1]


if __name__ == "__main__":
    import ensurepip  # noqa: F401 - Debian ships some without: they make no environments
    import venv  # noqa: F401

    os.write(sys.stdout.fileno(), json.dumps(facts()).encode())

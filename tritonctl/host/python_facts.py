# SPDX-License-Identifier: Apache-2.0
"""Facts about the running interpreter; also a program for any Python from 3.9 on."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from typing import List, Tuple  # noqa: UP035 - see above


def facts() -> Tuple[str, List[int], List[str]]:  # noqa: UP006
    """Return the interpreter's path behind shims, its version and its shared library's folder."""
    home = sysconfig.get_config_var
    version = list(sys.version_info[:3])
    name = f"libpython{version[0]}.{version[1]}.so.1.0"
    # Debian stores it in the architecture's folder, uv and conda next to the standard library.
    folders = [home("LIBDIR") or "", os.path.join(sys.base_prefix, "lib")]  # noqa: PTH118
    folders += [os.path.join(folder, home("MULTIARCH") or "") for folder in folders]  # noqa: PTH118
    libraries = [f for f in folders if os.path.isfile(os.path.join(f, name))]  # noqa: PTH113, PTH118
    return sys.executable, version, libraries[:1]


if __name__ == "__main__":
    import ensurepip  # noqa: F401 - some of Debian's lack it and cannot create environments
    import venv  # noqa: F401

    os.write(sys.stdout.fileno(), json.dumps(facts()).encode())

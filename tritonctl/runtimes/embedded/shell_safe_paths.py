# SPDX-License-Identifier: Apache-2.0
"""Shell-safe paths for a server whose Python backend passes them to a shell unquoted.

libtriton_python.so starts a stub as `bash -c "exec STUB MODEL ..."`. In a folder with a space in
its name every stub exits at once; `;` or `$(...)` in the name would run as a command.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from tritonctl.host.files import as_host_error


class ShellSafePaths:
    """Replaces unsafe paths by links in `folder`, relative to it; the server must run there."""

    def __init__(self, folder: Path) -> None:
        with as_host_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def shell_safe(self, path: Path, link: str) -> str:
        """Return the path if it needs no quoting, else the new `link` to it. Raises HostError."""
        if shlex.quote(str(path)) == str(path):
            return str(path)
        link_path = self._folder / link
        with as_host_error(link_path):
            link_path.unlink(missing_ok=True)
            link_path.symlink_to(path, target_is_directory=True)
        return link

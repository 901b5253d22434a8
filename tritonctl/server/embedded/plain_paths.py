# SPDX-License-Identifier: Apache-2.0
"""Paths for a server whose Python backend hands them to a shell, unquoted.

libtriton_python.so starts a stub as `bash -c "exec STUB MODEL ..."`. Below a folder with a space in
its name every stub ends at once, and one with `;` or `$(...)` would run as a command.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from tritonctl.host.files import explained


class PlainPaths:
    """Names what a shell would not take as one word by a link in `folder`, relative to it.

    The server must then run in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def of(self, path: Path, link: str) -> str:
        """The path as it is where a shell takes it so, else `link`. Raises HostError."""
        if shlex.quote(str(path)) == str(path):
            return str(path)
        place = self._folder / link
        with explained(place):
            place.unlink(missing_ok=True)
            place.symlink_to(path, target_is_directory=True)
        return link

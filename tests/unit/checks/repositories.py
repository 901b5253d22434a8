# SPDX-License-Identifier: Apache-2.0
"""Puts a rule's example on disk."""

from __future__ import annotations

from pathlib import Path

from tritonctl.checks.examples.files import Example, ExampleFile


def put(folder: Path, files: Example) -> Path:
    """The folder, with these files in it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        file = content if isinstance(content, ExampleFile) else ExampleFile(content.encode())
        if file.link is not None:
            path.symlink_to(file.link)
            continue
        path.write_bytes(file.content)
        if file.mode is not None:
            path.chmod(file.mode)
    return folder

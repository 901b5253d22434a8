# SPDX-License-Identifier: Apache-2.0
"""Create the shipped project in a folder, for `tritonctl quickstart`."""

from __future__ import annotations

from pathlib import Path

from tritonctl.errors import TritonctlError
from tritonctl.project.file import FILE_NAME, find_project_file, load_project
from tritonctl.project.schema import Project
from tritonctl.project.shipped import copy_example
from tritonctl.runtimes.discovery import current_server
from tritonctl.runtimes.ports import is_free
from tritonctl.runtimes.server_state import ServerFiles

MODEL = "speller"
FOLDER = "tritonctl-quickstart"
EXAMPLE = "number-speller"
PROMPTS = ("7342 in English:", "70615 in Chinese:", "90210 in Emoji:")


def quickstart_project(folder: Path | None) -> Project:
    """Return the surrounding project if it serves the speller, else the shipped one in a folder.

    Ports in use are replaced by free ones.
    """
    if folder is None:
        surrounding = _surrounding_project()
        if surrounding is not None:
            return surrounding
        folder = Path(FOLDER)
    if not (folder / FILE_NAME).exists():
        copy_example(EXAMPLE, folder)
    return with_free_ports(folder / FILE_NAME)


def _surrounding_project() -> Project | None:
    """Return the surrounding project if it serves the shipped model."""
    try:
        project = with_free_ports(find_project_file(Path.cwd()))
    except TritonctlError:
        return None
    return project if MODEL in project.models else None


def with_free_ports(file: Path) -> Project:
    """Load the project and replace each port that another process uses by a free one."""
    project = load_project(file)
    if current_server(ServerFiles.of(project)) is not None:  # its own server uses the ports
        return project
    server = project.server
    ports = ("grpc_port", "http_port", "metrics_port")
    occupied = [port for port in ports if not is_free(server.address, getattr(server, port))]
    return load_project(file, overrides=[f"server.{port}=0" for port in occupied])

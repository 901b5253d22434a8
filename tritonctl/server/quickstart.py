# SPDX-License-Identifier: Apache-2.0
"""The shipped project, made in a folder: what `tritonctl quickstart` runs on."""

from __future__ import annotations

from pathlib import Path

from tritonctl.errors import TritonctlError
from tritonctl.project.file import FILE_NAME, find_project_file, load_project
from tritonctl.project.schema import Project
from tritonctl.project.shipped import copy_example
from tritonctl.server.ports import is_free
from tritonctl.server.presence import current_server
from tritonctl.server.state import ServerFiles

MODEL = "speller"
FOLDER = "tritonctl-quickstart"
EXAMPLE = "number-speller"
PROMPTS = ("7342 in English:", "70615 in Chinese:", "90210 in Emoji:")


def quickstart_project(folder: Path | None) -> Project:
    """The surrounding project if it serves the speller, else the shipped one in a fresh folder.

    A port that something else already uses is replaced by a free one.
    """
    if folder is None:
        here = _project_here()
        if here is not None:
            return here
        folder = Path(FOLDER)
    if not (folder / FILE_NAME).exists():
        copy_example(EXAMPLE, folder)
    return with_free_ports(folder / FILE_NAME)


def _project_here() -> Project | None:
    """The surrounding project, if it serves the shipped model."""
    try:
        project = with_free_ports(find_project_file(Path.cwd()))
    except TritonctlError:
        return None
    return project if MODEL in project.models else None


def with_free_ports(file: Path) -> Project:
    """The project, each of its ports that something else uses now replaced by a free one."""
    project = load_project(file)
    if current_server(ServerFiles.of(project)) is not None:  # it holds its ports itself
        return project
    server = project.server
    ports = ("grpc_port", "http_port", "metrics_port")
    taken = [port for port in ports if not is_free(server.address, getattr(server, port))]
    return load_project(file, overrides=[f"server.{port}=0" for port in taken])

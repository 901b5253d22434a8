# SPDX-License-Identifier: Apache-2.0
"""What the containers' user may not read is told before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.handwritten import TWICE, write_model
from tests.unit.conftest import Sandbox
from tritonctl.errors import HostError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.repository.choice import select_models
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.publish import render
from tritonctl.runtimes.docker.file_permissions import (
    require_readable_models,
    require_readable_secrets,
)

USER = 1000

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file to others")


@pytest.fixture
def key(built: Sandbox) -> Path:
    """The server's key, of whoever made it, and readable by them alone."""
    for name in ("certificate", "key"):
        (built.root / name).write_text(name, encoding="utf-8")
    file = built.root / "key"
    file.chmod(0o600)
    return file


@pytest.fixture
def project(built: Sandbox, key: Path) -> Project:
    """A rendered project with TLS."""
    built.data["server"]["tls"] = {"certificate": "certificate", "key": key.name}
    loaded = built.load()
    render(loaded, Silent())
    return loaded


def require_readable(project: Project) -> None:
    """As `up` asks."""
    require_readable_models(project, plan_repository(project).model_names)
    require_readable_secrets(project)


@needs_root
def test_a_key_of_root_s(project: Project, key: Path) -> None:
    """Servers do not run as root; the owner of the key's group and everybody else may do."""
    with pytest.raises(HostError, match=r"user 1000, who may not read .*/key") as caught:
        require_readable(project)
    assert caught.value.remedy == f"chown {USER} {key}"
    os.chown(key, USER, 0)
    require_readable(project)
    os.chown(key, 0, USER)
    with pytest.raises(HostError):
        require_readable(project)
    key.chmod(0o640)
    require_readable(project)


@needs_root
def test_a_repository_of_the_user_s(project: Project, key: Path) -> None:
    """Its owner is who the containers run as; a file of root's in it is told."""
    files = [project.repository, *project.repository.rglob("*")]
    for path in (*files, key):
        os.chown(path, USER + 1, USER + 1)
    require_readable(project)
    [config, *_] = (path for path in files if path.name == "config.pbtxt")
    os.chown(config, 0, 0)
    config.chmod(0o600)
    with pytest.raises(HostError, match=r"may not read .*/config\.pbtxt"):
        require_readable(project)
    config.chmod(0o644)
    (project.repository / "stray").symlink_to("nowhere")
    require_readable(project)


@needs_root
def test_a_model_by_hand(project: Project, key: Path) -> None:
    """It is reported too; a model that was not chosen is not read."""
    key.chmod(0o644)
    code = write_model(project.repository, "mine", TWICE)
    write_model(project.repository, "other", TWICE)
    require_readable(project)
    code.chmod(0o600)
    with pytest.raises(HostError, match=r"may not read .*/mine/1/model\.py"):
        require_readable(project)
    require_readable(select_models(project, ["other"]))


def test_one_s_own_files(project: Project, key: Path) -> None:
    """As on most machines: the user owns the repository and the keys."""
    if os.getuid() == 0:
        key.chmod(0o644)
    require_readable(project)

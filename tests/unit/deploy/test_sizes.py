# SPDX-License-Identifier: Apache-2.0
"""Sizes of a container: they follow the repository, and say where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.conftest import Sandbox
from tritonctl.errors import RepositoryError
from tritonctl.host.progress import Silent
from tritonctl.repository.publish import render
from tritonctl.server.containers.sizes import DOCKER_DEFAULT_SHM, Sizes, container_sizes


def sizes(sandbox: Sandbox) -> Sizes:
    """Of the rendered project."""
    project = sandbox.load()
    render(project, Silent())
    return container_sizes(project)


def test_memory_grows_with_the_engine(built: Sandbox) -> None:
    """By its file and the copy that kernels are packed into, twice: it may be reloaded."""
    before = sizes(built).memory
    [engine] = built.root.glob("model_repository/speller_engine/1/engine")
    with (engine / "weights.bin").open("wb") as file:
        file.truncate(1 << 30)  # sparse
    after = container_sizes(built.load()).memory
    assert 2 * 2.2 * (1 << 30) < after - before < 2 * 3.2 * (1 << 30)


def test_shared_memory_grows_with_batch_and_length(built: Sandbox) -> None:
    """What the stubs' regions hold at once; never below Docker's default."""
    assert sizes(built).shm == DOCKER_DEFAULT_SHM
    config = built.root / "model_repository" / "speller_tokenizer" / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    tensor = 'input { name: "image" data_type: TYPE_FP32 dims: [3, 1024, 1024] }\n'
    config.write_text(text + tensor, encoding="utf-8")
    assert container_sizes(built.load()).shm > 3 * 1024 * 1024 * 4 * 32


def test_open_files_cover_the_connections(built: Sandbox) -> None:
    """10,000 idle clients are a case of the fault table."""
    assert sizes(built).nofile > 10_000 + 64 * 7


def test_every_figure_has_its_reason(built: Sandbox) -> None:
    """compose.yaml repeats them; a setting of the project names itself."""
    reasons = sizes(built).reasons
    assert "3 stubs" in reasons["memory"]
    assert set(reasons) == {"memory", "shm", "tmp", "nofile"}
    built.data["docker"] = {"memory": "2GiB"}
    built.write()
    assert sizes(built).memory == 2 << 30
    assert sizes(built).reasons["memory"] == "docker.memory of tritonctl.yaml"


def test_a_repository_that_is_not_there(built: Sandbox) -> None:
    """The command to type is named."""
    project = built.load()
    with pytest.raises(RepositoryError, match="has no models") as caught:
        container_sizes(project)
    assert "tritonctl render" in caught.value.remedy
    assert not Path(project.repository / "speller").exists()

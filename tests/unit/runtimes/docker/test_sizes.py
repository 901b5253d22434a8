# SPDX-License-Identifier: Apache-2.0
"""Sizes of a container: they follow the repository, and say where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.handwritten import TWICE, write_model
from tests.unit.conftest import Sandbox
from tritonctl.errors import RepositoryError
from tritonctl.host.progress import Silent
from tritonctl.repository.choice import select_models
from tritonctl.repository.plan import plan_repository
from tritonctl.repository.publish import render
from tritonctl.runtimes.docker.container_limits import (
    DOCKER_DEFAULT_SHM,
    ENGINE_STUB_BYTES,
    ContainerLimits,
    container_limits,
    model_bytes,
)


def sizes(sandbox: Sandbox) -> ContainerLimits:
    """Of the rendered project."""
    project = sandbox.load()
    return container_limits(project, render(project, Silent()).plan)


def kept(sandbox: Sandbox) -> ContainerLimits:
    """Of what lies in the repository, which is not rendered again."""
    project = sandbox.load()
    return container_limits(project, plan_repository(project))


def test_memory_grows_with_the_engine(built: Sandbox) -> None:
    """By its file and the copy that kernels are packed into, twice: it may be reloaded."""
    before = sizes(built).memory
    [engine] = built.root.glob("model_repository/speller_engine/1/engine")
    with (engine / "weights.bin").open("wb") as file:
        file.truncate(1 << 30)  # sparse
    after = kept(built).memory
    assert 2 * 2.2 * (1 << 30) < after - before < 2 * 3.2 * (1 << 30)


def test_memory_of_models_by_hand(built: Sandbox) -> None:
    """Their stubs, packages and the files that are served, for each instance; twice: a reload."""
    repository = built.root / "model_repository"
    before = sizes(built).memory
    write_model(repository, "mine", TWICE)
    assert 0 < sizes(built).memory - before < 1 << 28
    write_model(repository, "mine", TWICE, requirements="wcwidth==0.2.13\n")
    for version in (1, 2):
        (repository / "mine" / str(version)).mkdir(exist_ok=True)
        with (repository / "mine" / str(version) / "weights.bin").open("wb") as file:
            file.truncate(1 << 30)
    config = repository / "mine" / "config.pbtxt"
    with config.open("a", encoding="utf-8") as file:
        file.write("instance_group [{ kind: KIND_CPU count: 2 }]\n")
    made = sizes(built)
    assert 4 * 2.2 * (1 << 30) < made.memory - before < 4 * 3.2 * (1 << 30)
    assert "handwritten models" in made.reasons["memory"]
    project = built.load()
    again = model_bytes(project, plan_repository(project), "mine")
    assert 2 * ENGINE_STUB_BYTES < again - 2 * int(2.2 * (1 << 30)) < 2 * ENGINE_STUB_BYTES + 1e5


def test_what_is_not_chosen_takes_nothing(built: Sandbox) -> None:
    """Not even a config.pbtxt that cannot be read."""
    sizes(built)
    write_model(built.root / "model_repository", "mine", TWICE)
    broken = built.root / "model_repository" / "broken"
    broken.mkdir()
    (broken / "config.pbtxt").write_text("name: [", encoding="utf-8")
    project = select_models(built.load(), ["mine"])
    made = container_limits(project, plan_repository(project))
    assert "1 stubs" in made.reasons["memory"]
    assert made.memory < 3 * ENGINE_STUB_BYTES


def test_shared_memory_grows_with_batch_and_length(built: Sandbox) -> None:
    """What the stubs' regions hold at once; never below Docker's default."""
    assert sizes(built).shm == DOCKER_DEFAULT_SHM
    config = built.root / "model_repository" / "speller_tokenizer" / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    tensor = 'input { name: "image" data_type: TYPE_FP32 dims: [3, 1024, 1024] }\n'
    config.write_text(text + tensor, encoding="utf-8")
    assert kept(built).shm > 3 * 1024 * 1024 * 4 * 32


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
        container_limits(project, plan_repository(project))
    assert "tritonctl render" in caught.value.remedy
    assert not Path(project.repository / "speller").exists()

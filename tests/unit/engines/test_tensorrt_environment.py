# SPDX-License-Identifier: Apache-2.0
"""The tensorrt builder's own environment: the TensorRT of the server that will load the plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.runners import builder_recipe
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.errors import ConfigurationError
from tritonctl.host.environments import EnvironmentRecipe, environment_folder, environment_python
from tritonctl.host.requirements import verified_install_arguments

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

# What the proof of a task reads texts and images with.
PROOF = verified_install_arguments("requirements.lock")


@pytest.fixture
def plan(sandbox: Sandbox) -> Sandbox:
    """A project whose model is built by the tensorrt builder, in an environment of its own."""
    (sandbox.checkpoint / "model.onnx").write_bytes(b"graph")
    model = sandbox.data["models"]["speller"]
    model["task"] = "tensors"
    model["engine"] = {"builder": "tensorrt", "precision": "fp16", "runner": "venv"}
    return sandbox


def recipe(sandbox: Sandbox, **target: Any) -> EnvironmentRecipe:
    """The environment for a target."""
    sandbox.engine["target"] = target
    (build,) = plan_stages(sandbox.load(), "speller")
    return builder_recipe(build.builder, build.stage, build.request.target)


@pytest.mark.parametrize(
    ("release", "tensorrt", "package"),
    [
        ("25.07", "10.11.0.33", "tensorrt-cu12==10.11.0.33.*"),
        ("25.08", "10.13.2.6", "tensorrt-cu13==10.13.2.6.*"),
        ("26.07", "10.16.1.11", "tensorrt-cu13==10.16.1.11.*"),
    ],
)
def test_tensorrt_of_the_server(plan: Sandbox, release: str, tensorrt: str, package: str) -> None:
    """Its very version, for the CUDA of its image; the probe looks at what was installed."""
    made = recipe(plan, release=release, tensorrt=tensorrt)
    assert made.installs == ((package,), PROOF)
    assert f"startswith('{tensorrt}')" in made.probe


def test_an_environment_for_each_version(plan: Sandbox) -> None:
    """Another TensorRT, another environment, another engine."""
    one = recipe(plan, release="26.07", tensorrt="10.15.1.29")
    other = recipe(plan, release="26.07", tensorrt="10.16.1.11")
    assert environment_folder(one) != environment_folder(other)
    assert environment_folder(one) == environment_folder(
        recipe(plan, release="26.06", tensorrt="10.15.1.29")
    )


def test_a_version_newer_than_the_table_is_left_to_pip(plan: Sandbox) -> None:
    """The index grows; the table does not know how."""
    made = recipe(plan, release="26.08", tensorrt="12.0.0.1")
    assert made.installs == (("tensorrt-cu13==12.0.0.1.*",), PROOF)


@pytest.mark.parametrize(
    ("target", "problem", "remedy"),
    [
        (
            {"release": "26.07"},
            "the version that release 26.07 has is unknown",
            "dpkg -l 'libnvinfer",
        ),
        (
            {"release": "26.07", "tensorrt": "10.12.0.36"},
            "TensorRT 10.12.0.36 for CUDA 13 has no Python package",
            "nearest: 10.13.2.6",
        ),
        (
            {"release": "25.01", "tensorrt": "10.8.0.40"},
            "TensorRT 10.8.0.40 for CUDA 12 has no Python package",
            "nearest: 10.8.0.43",
        ),
    ],
)
def test_what_cannot_be_installed_is_refused(
    plan: Sandbox, target: dict[str, str], problem: str, remedy: str
) -> None:
    """Before anything runs, with the way out: the version in full, or a container."""
    with pytest.raises(ConfigurationError, match=problem) as caught:
        recipe(plan, **target)
    assert remedy in caught.value.remedy
    assert "runner `container`" in caught.value.remedy


def test_a_container_brings_its_own(plan: Sandbox) -> None:
    """Nothing to install: the version may stay open."""
    plan.engine["runner"] = "container"
    (build,) = plan_stages(plan.load(), "speller")
    assert build.request.target
    assert build.request.target.tensorrt is None
    assert build.request.target.image == "nvcr.io/nvidia/tensorrt:26.07-py3"


def test_a_recipe_never_keeps_a_placeholder(plan: Sandbox) -> None:
    """Without a target there is no environment to be made."""
    with pytest.raises(
        ConfigurationError, match=r"builder tensorrt depends on the server's \{tensorrt\}"
    ):
        builder_recipe(builder_named("tensorrt"))
    made = recipe(plan, release="26.07", tensorrt="10.16.1.11")
    assert not {"{", "}"} & set("".join((*made.installs[0], made.probe)))


def test_a_task_is_exported_once(plan: Sandbox) -> None:
    """Another profile or GPU compiles again; other pooling does both. Options are not by stage."""

    def made(**changes: Any) -> list[str]:
        plan.engine.update(changes)
        return [build.fingerprint.digest for build in plan_stages(plan.load(), "speller")]

    plan.data["models"]["speller"]["task"] = "embedding"
    del plan.engine["runner"]
    first = made(options={"pooling": "mean"}, target={"gpu": "H100"})
    assert len(first) == 2
    shape = {"input_ids": {"min": [1, 1], "opt": [4, 8], "max": [8, 16]}}
    profiled = made(options={"pooling": "mean", "profiles": shape})
    other = made(target={"gpu": "L4"})
    assert first[0] == profiled[0] == other[0]
    assert len({first[1], profiled[1], other[1]}) == 3
    assert made(options={"pooling": "cls"})[0] != first[0]
    export, _ = plan_stages(plan.load(), "speller")
    assert (export.runner, export.request.options) == ("venv", {"pooling": "cls"})


def test_tensorrt_llm_has_its_own(plan: Sandbox) -> None:
    """A release of TensorRT-LLM comes with one TensorRT."""
    model = plan.data["models"]["speller"]
    model["task"] = "text_generation"
    model["engine"] = {
        "builder": "tensorrt_llm",
        "precision": "fp16",
        "target": {"tensorrt": "10.16.1.11"},
    }
    with pytest.raises(ConfigurationError, match="applies to the builder tensorrt;"):
        plan_stages(plan.load(), "speller")


def test_dry_run_names_the_environment(plan: Sandbox, cli: Cli) -> None:
    """The command that a build would run; nothing is installed."""
    made = recipe(plan, release="26.07", tensorrt="10.16.1.11")
    del plan.engine["runner"]
    plan.write()
    done = cli("build", "--dry-run", "--runner", "venv", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["runner"], record["required"]) == ("venv", True)
    assert record["commands"][0][0] == str(environment_python(environment_folder(made)))
    assert not environment_folder(made).exists()


def test_dry_run_refuses_without_the_version(plan: Sandbox, cli: Cli) -> None:
    """Exit code 3, and what to set."""
    plan.write()
    done = cli("build", "--dry-run")
    assert done.returncode == 3
    assert "engine.target.tensorrt" in done.stderr

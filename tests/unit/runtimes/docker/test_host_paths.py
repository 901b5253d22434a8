# SPDX-License-Identifier: Apache-2.0
"""What models read outside the repository is in the container, where they look for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.handwritten import TWICE, write_model
from tests.unit.conftest import Sandbox
from tritonctl.errors import ConfigurationError
from tritonctl.host.progress import Silent
from tritonctl.repository.publish import render
from tritonctl.runtimes.docker.compose import render_compose
from tritonctl.runtimes.docker.host_paths import host_paths

PACKAGE = {
    "speculative_config": {
        "decoding_type": "Eagle",
        "speculative_model_dir": "/drafts/$eagle",
        "speculative_model": "/drafts/other",
    },
}


def volumes(sandbox: Sandbox, **changes: Any) -> list[dict[str, Any]]:
    """The volumes of Triton, for a project that was rendered and then got other engine options."""
    project = sandbox.load()
    plan = render(project, Silent()).plan
    sandbox.engine["options"] |= changes
    made = render_compose(sandbox.load(), plan, sandbox.root / "deploy")
    services = yaml.safe_load(made.files["compose.yaml"])["services"]
    found: list[dict[str, Any]] = services["triton-gpu"]["volumes"]
    assert [volume["target"] for volume in found[:2]] == ["/models", "/beside"]
    return found[2:]


def test_draft_models_of_the_pytorch_runtime(built: Sandbox) -> None:
    """Where llm_args.json names them; read-only, and never made where they are missing."""
    found = volumes(built, package=PACKAGE)
    # Compose reads `$$` as `$`.
    assert [volume["source"] for volume in found] == ["/drafts/$$eagle", "/drafts/other"]
    for volume in found:
        assert volume["target"] == volume["source"]
        assert volume["type"] == "bind"
        assert volume["read_only"] is True
        assert volume["bind"] == {"create_host_path": False}


def test_names_of_a_hub_are_no_paths(built: Sandbox) -> None:
    """A draft model may be one; nothing is mounted for it."""
    draft = {"speculative_config": {"speculative_model": "some/model"}}
    assert volumes(built, package=draft) == []


def test_adapters_are_in_the_artefact(built: Sandbox) -> None:
    """The builder copied them: nothing is mounted."""
    assert volumes(built, package={"lora_config": {"lora_dir": ["/adapters/french"]}}) == []


def test_nothing_more_than_the_repository_otherwise(built: Sandbox) -> None:
    """Engines of other builders are in it."""
    assert volumes(built) == []


def test_the_cpp_backend_names_its_engine_by_place(sandbox: Sandbox) -> None:
    """The repository under its own path, too, and what serving.runtime names."""
    sandbox.data["models"]["speller"]["serving"] = {
        "backend": "tensorrtllm",
        "runtime": {
            "lora_prefetch_dir": "/adapters",
            "xgrammar_tokenizer_info_path": "/info.json",
            "decoding_mode": "top_k",
        },
    }
    repository = sandbox.root / "model_repository"
    assert host_paths(sandbox.load()) == sorted([Path("/adapters"), Path("/info.json"), repository])
    sandbox.serving["runtime"] = {"gpt_model_path": "/engines/one"}
    assert host_paths(sandbox.load()) == [Path("/engines/one")]


@pytest.mark.parametrize("place", ["/models/adapters", "/usr", "/", "/opt/tritonserver"])
def test_what_would_hide_the_server_is_refused(built: Sandbox, place: str) -> None:
    """Named by its field."""
    field = r"models\.speller\.engine\.options\.package\.speculative_config\.speculative_model"
    with pytest.raises(ConfigurationError, match=f"{field} is {place}, but the container uses"):
        volumes(built, package={"speculative_config": {"speculative_model": place}})


def test_what_parameters_of_models_by_hand_name(built: Sandbox, tmp_path: Path) -> None:
    """Files and folders of this host; what is the container's own, or nowhere, is left as it is."""
    packed = tmp_path / "packed environment.tar.gz"
    packed.touch()
    values = [str(packed), "/models/mine/1", "/usr", "/nowhere/at/all", "5", "relative"]
    render(built.load(), Silent())
    write_model(built.root / "model_repository", "mine", TWICE)
    config = built.root / "model_repository" / "mine" / "config.pbtxt"
    with config.open("a", encoding="utf-8") as file:
        for number, value in enumerate(values):
            entry = f'{{ key: "p{number}" value: {{ string_value: "{value}" }} }}\n'
            file.write(f"parameters: {entry}")
    assert host_paths(built.load()) == [packed]

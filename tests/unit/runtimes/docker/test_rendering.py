# SPDX-License-Identifier: Apache-2.0
"""compose.yaml as data: what a container may, where it listens, what it is built from."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from tests.unit.conftest import Cli, Sandbox
from tritonctl.errors import ConfigurationError
from tritonctl.host.progress import Silent
from tritonctl.releases.slots import Slot
from tritonctl.repository.choice import select_models
from tritonctl.repository.publish import render
from tritonctl.runtimes.docker import compose
from tritonctl.runtimes.docker.compose import (
    Rendering,
    compose_scalar,
    deployment_name,
    render_compose,
    unpinned_images,
)
from tritonctl.runtimes.docker.deployment_files import write_files
from tritonctl.runtimes.docker.lifecycle import _reserved_ports, deployment_folder
from tritonctl.runtimes.server_state import ServerFiles


def rendering(sandbox: Sandbox, output: Path | None = None) -> Rendering:
    """The project rendered, then its deployment."""
    project = sandbox.load()
    plan = render(project, Silent()).plan
    return render_compose(project, plan, output or sandbox.root / "deploy")


def services(made: Rendering) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(made.files["compose.yaml"])
    found: dict[str, Any] = data["services"]
    return found


def test_servers_have_no_privileges_and_listen_on_loopback(built: Sandbox) -> None:
    """Both kinds of Triton, with and without a GPU."""
    made = rendering(built)
    assert made.profile == "cpu"
    for name in ("triton", "triton-gpu"):
        service = services(made)[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"].split(":")[0] != "0"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        models, beside = service["volumes"]
        assert (models["source"], models["target"]) == ("../model_repository", "/models")
        assert (beside["source"], beside["target"]) == ("${TRITON_BESIDE:-/dev/null}", "/beside")
        assert (models["read_only"], beside["read_only"]) == (True, True)
        assert "privileged" not in service


def test_every_service_runs_without_capabilities(built: Sandbox) -> None:
    """Those of other parts, too."""
    for name, service in services(rendering(built)).items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert all(str(port).startswith("127.0.0.1:") for port in service["ports"]), name


def test_streams_have_longer_than_the_exit_timeout(built: Sandbox) -> None:
    """Docker kills after stop_grace_period: the supervisor must have ended before."""
    built.data["server"]["exit_timeout_seconds"] = 77
    built.write()
    service = services(rendering(built))["triton"]
    assert int(service["stop_grace_period"].removesuffix("s")) > 77 + 10
    assert "--exit-timeout-secs=77" in service["command"]


def test_a_gpu_is_reserved(built: Sandbox) -> None:
    """One, where the project names none."""
    limits = services(rendering(built))["triton-gpu"]["deploy"]["resources"]
    [device] = limits["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_an_engine_for_a_gpu_is_not_offered_to_the_cpu(built: Sandbox) -> None:
    """One Triton, with NVIDIA's image of the compatibility table and GPU metrics."""
    built.data["models"]["speller"]["serving"] = {
        "instance_group": [{"kind": "KIND_GPU", "gpus": [1]}]
    }
    built.write()
    made = rendering(built)
    assert made.profile == "gpu"
    assert "triton" not in services(made)
    service = services(made)["triton-gpu"]
    assert "tritonserver:26.07-trtllm" in service["build"]["args"]["BASE_IMAGE"]
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["1"]
    assert not [argument for argument in service["command"] if "gpu-metrics" in argument]


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ('backend: "python" instance_group [{ kind: KIND_GPU gpus: [2] }]', "trtllm-python-py3"),
        ('platform: "tensorrt_plan" instance_group [{ gpus: [2] }]', "26.07-py3"),
        ('backend: "onnxruntime" instance_group [{ kind: KIND_GPU gpus: [2] }]', "26.07-py3"),
    ],
)
def test_a_model_by_hand_for_a_gpu(built: Sandbox, text: str, image: str) -> None:
    """Its GPU is reserved, and the image has its backend."""
    folder = built.root / "model_repository" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f'name: "mine" {text}\n', encoding="utf-8")
    made = rendering(built)
    assert (made.profile, "triton" in services(made)) == ("gpu", False)
    service = services(made)["triton-gpu"]
    assert image in service["build"]["args"]["BASE_IMAGE"]
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["2"]
    others = select_models(built.load(), ["speller"])
    plan = render(others, Silent()).plan
    assert render_compose(others, plan, built.root / "deploy").profile == "cpu"


def test_an_image_of_ones_own_is_not_built(built: Sandbox) -> None:
    """docker.image, best by digest."""
    image = "example/triton@sha256:" + "0" * 64
    built.data["docker"] = {"image": image, "memory": "3GiB", "shm_size": "1GiB"}
    built.write()
    service = services(rendering(built))["triton"]
    assert service["image"] == image
    assert "build" not in service
    assert (service["mem_limit"], service["shm_size"]) == (str(3 << 30), str(1 << 30))


def test_the_image_s_tag_follows_what_is_in_it(built: Sandbox) -> None:
    """Another base is another image; the same project renders the same bytes."""
    first = rendering(built)
    assert rendering(built).files == first.files
    built.data["docker"] = {"base_image": "example/debian:2"}
    built.write()
    second = services(rendering(built))["triton"]
    assert second["image"] != services(first)["triton"]["image"]
    assert second["build"]["args"] == {"BASE_IMAGE": "example/debian:2"}


def test_the_requirements_are_the_backends_pins(built: Sandbox) -> None:
    """Each once, all of them pinned."""
    lines = rendering(built).files["triton/requirements.txt"].splitlines()
    assert "tokenizers==0.23.3" in lines
    assert len(lines) == len(set(lines))
    assert all("==" in line for line in lines)


def test_the_images_are_built_from_locks(built: Sandbox) -> None:
    """Every line has hashes. NVIDIA's image has what backends need beyond what they name."""
    folder = built.root / "model_repository" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text('name: "mine"\nbackend: "python"\n', encoding="utf-8")
    (folder / "requirements.txt").write_text("wcwidth==0.2.13\n", encoding="utf-8")
    files = rendering(built).files
    packages = {}
    for kind in ("cpu", "gpu"):
        lines = files[f"triton/{kind}_requirements.lock"].replace("\\\n", "").splitlines()
        assert all(" --hash=sha256:" in line for line in lines)
        packages[kind] = {line.partition("==")[0] for line in lines}
        assert f"{kind}_requirements.lock" in files[f"triton/{kind}.Dockerfile"]
    assert {"nvidia-pytriton", "tokenizers", "huggingface-hub"} <= packages["cpu"]
    assert packages["gpu"] <= {"jinja2", "markupsafe", "numpy", "openvino", "tokenizers"} | {
        "openvino-genai"
    }
    assert "tokenizers" in packages["gpu"]
    assert "wcwidth" not in packages["cpu"] | packages["gpu"]


def test_models_by_hand(built: Sandbox) -> None:
    """Their packages go into the image; a folder that is no model is not loaded."""
    folder = built.root / "model_repository" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text('name: "mine"\nbackend: "python"\n', encoding="utf-8")
    (folder / "requirements.txt").write_text("wcwidth==0.2.13\n", encoding="utf-8")
    made = rendering(built)
    assert "wcwidth==0.2.13" in made.files["triton/requirements.txt"].splitlines()
    assert "--load-model=*" in services(made)["triton"]["command"]
    (folder.parent / ".git").mkdir()
    command = services(rendering(built))["triton"]["command"]
    loaded = [one.partition("=")[2] for one in command if one.startswith("--load-model")]
    assert loaded[:2] == ["mine", "speller"]
    assert "*" not in loaded


def test_backends_that_disagree_are_refused(built: Sandbox) -> None:
    """One image has one environment."""
    project = built.load()
    plan = render(project, Silent()).plan
    [first, *rest] = plan.backends
    folder = built.root / "other"
    folder.mkdir()
    (folder / "requirements.txt").write_text("numpy==2.0.0\n", encoding="utf-8")
    other = first.model_copy(update={"folder": folder})
    with pytest.raises(ConfigurationError, match=r"numpy==(2\.0\.0|1\S+), .* numpy==(1|2\.0\.0)"):
        render_compose(project, replace(plan, backends=(*rest, other)), built.root / "deploy")


def test_replicas_need_a_gateway(built: Sandbox) -> None:
    """Nobody would share the requests among them."""
    built.data["docker"] = {"replicas": 2}
    built.write()
    with pytest.raises(ConfigurationError, match=r"docker\.replicas is 2"):
        rendering(built)


def test_replicas_of_a_slot(built: Sandbox) -> None:
    """Their gateway is beside the containers: a range of the host's ports each, if `up` names it.

    By hand Docker chooses. Frontend and servers have the names of their slot's deployment.
    """
    built.data["docker"] = {"replicas": 2}
    built.data["frontend"] = {}
    built.data["rollout"] = {"user_header": "x-user-id"}
    built.write()
    project = built.load()
    plan = render(project, Silent()).plan
    made = render_compose(project, plan, built.root / "deploy", Slot.B)
    found = services(made)
    assert "envoy" not in found
    assert found["triton"]["deploy"]["replicas"] == 2
    assert found["triton"]["ports"][0] == "127.0.0.1:${TRITON_GRPC_PORT:-}:8001"
    name = yaml.safe_load(made.files["compose.yaml"])["name"]
    assert name.endswith("-b")
    assert f"{name}-triton-2:8001" in made.files["frontend/frontend.json"]
    with _reserved_ports(project, Slot.B) as variables:
        ports = [
            variables[f"TRITON_{each}_PORT"].split("-") for each in ("GRPC", "HTTP", "METRICS")
        ]
        assert [int(last) - int(first) for first, last in ports] == [1, 1, 1]
        assert len({port for each in ports for port in each}) == 6
    with _reserved_ports(project, None) as variables:
        assert variables == {}


def test_paths_are_relative_to_the_folder(built: Sandbox, tmp_path: Path) -> None:
    """The repository can be moved with its deployment."""
    elsewhere = tmp_path / "far" / "away"
    models, _ = services(rendering(built, elsewhere))["triton"]["volumes"]
    expected = os.path.relpath(built.root / "model_repository", elsewhere)
    assert models["source"] == expected


def test_what_compose_would_replace_is_escaped() -> None:
    """A `$` of ours is no variable."""
    assert compose_scalar("a$b: {c}\n") == '"a$$b: {c}\\n"'


def test_a_variable_that_is_missing_is_an_error(built: Sandbox) -> None:
    """StrictUndefined: no empty place in a file that looks finished."""
    with pytest.raises(jinja2.UndefinedError):
        compose._compose_text(built.load(), {"address": "127.0.0.1"})


def test_up_brings_the_deployment_up_to_date(built: Sandbox) -> None:
    """The user's folder where there is one: written anew with a note, or refused; else ours."""

    class Notes(Silent):
        def note(self, text: str) -> None:
            """Kept."""
            told.append(text)

    def folder() -> Path:
        project = built.load()
        rendered = render(project, Silent())
        return deployment_folder(project, rendered, ServerFiles.of(project), Notes())

    told: list[str] = []
    own = built.root / "deploy"
    assert folder() == ServerFiles.of(built.load()).folder / "deploy"
    write_files(rendering(built).files, own)
    assert (folder(), told) == (own, [])
    built.data["docker"] = {"memory": "7g"}
    built.write()
    assert folder() == own
    assert [note.partition(" was outdated and was rendered again: ")[2] for note in told] == [
        "compose.yaml"
    ]
    assert str(7 << 30) in (own / "compose.yaml").read_text(encoding="utf-8")
    with (own / "compose.yaml").open("a", encoding="utf-8") as file:
        file.write("# mine\n")
    assert (folder(), len(told)) == (own, 1)
    del built.data["docker"]
    built.write()
    with pytest.raises(ConfigurationError, match=r"compose\.yaml: edited since tritonctl wrote it"):
        folder()
    assert "# mine" in (own / "compose.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("gateway", "command"),
    [
        (None, "docker compose --profile cpu up --wait"),
        ({"port": 8080}, "docker compose --profile cpu --profile gateway up --wait"),
    ],
)
def test_the_command_that_starts_it(
    built: Sandbox, cli: Cli, gateway: dict[str, int] | None, command: str
) -> None:
    """With the gateway where the project has one: it has a profile of its own."""
    if gateway:
        built.data["gateway"] = gateway
    built.write()
    done = cli("deploy", "compose")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"start it there: {command}"


def test_each_of_two_groups_is_a_deployment(built: Sandbox) -> None:
    """Under a name of its own, with what the user overrides; the gateway beside both asks both."""
    built.data |= {"frontend": {"port": 9100}, "gateway": {"port": 0}}
    project = built.load()
    rendered = render(project, Silent())
    own = built.root / "deploy"
    write_files({**rendering(built).files, "compose.override.yaml": "services: {}\n"}, own)
    made = {}
    for slot in Slot:
        files = ServerFiles.of(project, slot)
        folder = deployment_folder(project, rendered, files, Silent(), slot)
        assert folder == files.folder / "deploy"
        assert (folder / "compose.override.yaml").read_text(encoding="utf-8") == "services: {}\n"
        made[slot] = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    assert made[Slot.B]["name"] == f"{made[Slot.A]['name']}-b"
    assert made[Slot.A]["name"] == deployment_name(project)
    for data in made.values():
        assert "envoy" not in data["services"]
        assert data["services"]["frontend"]["ports"] == ["127.0.0.1:${FRONTEND_PORT:-9100}:9100"]
    assert "ports" not in services(rendering(built))["frontend"]  # behind the gateway's container


def test_images_are_pinned_or_named(built: Sandbox) -> None:
    """Those that are chosen here have digests; the base of the built image is named without one."""
    made = rendering(built)
    for name in ("prometheus", "grafana"):
        image = services(made)[name]["image"]
        variable, _, default = image.removesuffix("}").partition(":-")
        assert variable == f"${{{name.upper()}_IMAGE"
        assert re.fullmatch(r"[\w/]+:[\w.]+@sha256:[0-9a-f]{64}", default)
    assert unpinned_images(made) == [compose.CPU_BASE_IMAGE]
    built.data["docker"] = {"base_image": f"example/base:1@sha256:{'0' * 64}"}
    assert unpinned_images(rendering(built)) == []
    built.data["docker"] = {"image": "example/triton:1"}
    assert unpinned_images(rendering(built)) == ["example/triton:1"]

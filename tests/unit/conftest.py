# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: a project folder with a scripted builder, the command line, patience."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import run_here
from tritonctl.engines.builds.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project

HERE = Path(__file__).parent
MODEL = "speller"
PATIENCE_SECONDS = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` rewrites tests/unit/repository/golden/ instead of comparing with it."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No TRITONCTL_* variable from outside, a cache of our own, output 80 columns wide."""
    for name in list(os.environ):
        if name.startswith("TRITONCTL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRITONCTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    # Tests kill processes, not machines; on a busy disk each fsync takes a tenth of a second.
    monkeypatch.setattr(os, "fsync", lambda _: None)


# What is waited for a server that does not answer. Those that tests play all do, on a busy machine
# late; a test whose subject is that they do not sets its own.
PATIENT = (
    "tritonctl.host.torch_index._SECONDS",
    "tritonctl.loadtest.run.server_facts._TIMEOUT_SECONDS",
    "tritonctl.protocol.inspection._SECONDS",
    "tritonctl.protocol.metrics._PROBE_SECONDS",
    "tritonctl.protocol.model_control._ASK_SECONDS",
    "tritonctl.protocol.row_calls._DESCRIBE_SECONDS",
    "tritonctl.runtimes.health._TIMEOUT_SECONDS",
    "tritonctl.supervision.readiness._TIMEOUT_SECONDS",
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test fails because a server of its own is starved."""
    for name in PATIENT:
        monkeypatch.setattr(name, PATIENCE_SECONDS)


@dataclass
class Sandbox:
    """A project folder served by the scripted builder; change `data`, then `load()`."""

    root: Path
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Lay out checkpoint and builder."""
        shutil.copytree(HERE / "scripted_builder", self.root / "builders" / "scripted")
        self.checkpoint.mkdir(parents=True)
        (self.checkpoint / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
        (self.checkpoint / "model.safetensors").write_bytes(b"weights")
        self.data = {
            "schema": "tritonctl/v1",
            "models": {MODEL: self.model()},
            "server": {"grpc_port": 0, "http_port": 0, "metrics_port": 0},
        }
        self.write()

    def model(self) -> dict[str, Any]:
        """A model of the project file that the scripted builder can build."""
        options = {"behaviour": "ok", "runs": self.runs.name}
        return {
            "checkpoint": "checkpoint",
            "engine": {
                "builder": "scripted",
                "precision": "int8",
                "max_batch_size": 4,
                "max_seq_len": 64,
                "options": options,
            },
        }

    @property
    def checkpoint(self) -> Path:
        """The model folder."""
        return self.root / "checkpoint"

    @property
    def runs(self) -> Path:
        """Where the builder counts its runs."""
        return self.root / "runs.txt"

    @property
    def file(self) -> Path:
        """The project file."""
        return self.root / "tritonctl.yaml"

    @property
    def engine(self) -> dict[str, Any]:
        """The `engine` section of the model, to be changed."""
        return dict_at(self.data, "models", MODEL, "engine")

    @property
    def serving(self) -> dict[str, Any]:
        """The `serving` section of the model, to be changed."""
        return dict_at(self.data, "models", MODEL, "serving")

    def behave(self, behaviour: str, **options: Any) -> None:
        """Tell the builder what to do next."""
        self.engine["options"] |= {"behaviour": behaviour, **options}
        self.write()

    def write(self) -> None:
        """Write the project file."""
        self.file.write_text(yaml.safe_dump(self.data, sort_keys=False), encoding="utf-8")

    def take_engine_of(self, other: Sandbox) -> None:
        """Start with the engine that another sandbox has built: fingerprints know no paths."""
        engines = Path(".tritonctl") / "engines"
        shutil.copytree(other.root / engines, self.root / engines)

    def load(self) -> Project:
        """Write and read the project file."""
        self.write()
        return load_project(self.file, environment={})

    def run_count(self) -> int:
        """How many times the builder ran."""
        return len(self.builder_processes())

    def builder_processes(self) -> list[list[int]]:
        """Process ids (builder, child) of every run so far."""
        if not self.runs.exists():
            return []
        lines = self.runs.read_text(encoding="utf-8").splitlines()
        return [[int(pid) for pid in line.split()] for line in lines]

    def files_below(self, *folders: str) -> list[str]:
        """Every file below folders of `.tritonctl/`, as paths relative to it, sorted."""
        state = self.root / ".tritonctl"
        found = [p for f in folders for p in (state / f).rglob("*") if not p.is_dir()]
        return sorted(p.relative_to(state).as_posix() for p in found)


def dict_at(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The mapping at a path of nested mappings, made if absent."""
    for key in keys:
        data = data.setdefault(key, {})
    return data


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    """A fresh project folder."""
    return Sandbox(tmp_path / "project")


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """A sandbox with its engine, to be copied from."""
    sandbox = Sandbox(tmp_path_factory.mktemp("built") / "project")
    build_engine(sandbox.load(), MODEL, Silent())
    return sandbox


@pytest.fixture
def built(sandbox: Sandbox, built_once: Sandbox) -> Sandbox:
    """The sandbox, its engine built already."""
    sandbox.take_engine_of(built_once)
    return sandbox


@dataclass(frozen=True)
class Cli:
    """The `tritonctl` command in a folder."""

    cwd: Path

    def __call__(
        self, *arguments: str | Path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in this process."""
        return run_here(*arguments, cwd=self.cwd, environment=environment)

    def process(
        self, *arguments: str | Path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in a process of its own."""
        return subprocess.run(
            self._argv(*arguments),
            cwd=self.cwd,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def start(self, *arguments: str | Path, stdin: int | None = None) -> subprocess.Popen[str]:
        """Start a command; it hears SIGINT and SIGHUP even if this process ignores them."""
        return subprocess.Popen(
            [sys.executable, "-c", _WITH_DEFAULT_SIGNALS, *self._argv(*arguments)],
            cwd=self.cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def _argv(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "tritonctl", *(str(a) for a in arguments)]


# A program of its own: `preexec_fn` may hang in a process with threads, such as pytest-xdist's.
_WITH_DEFAULT_SIGNALS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def cli(sandbox: Sandbox) -> Cli:
    """The command line, run in the sandbox's folder."""
    return Cli(sandbox.root)


WaitUntil = Callable[[Callable[[], object]], None]


@pytest.fixture
def wait_until() -> WaitUntil:
    """Wait for a condition to become true; fails after PATIENCE_SECONDS."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the awaited condition never became true"
            time.sleep(0.02)

    return wait

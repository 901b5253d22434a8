# SPDX-License-Identifier: Apache-2.0
"""The project that `tritonctl quickstart` runs on: here, or copied into a fresh folder."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonctl.cli.console.output import Console
from tritonctl.cli.quickstart import _program_name
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host import bundled
from tritonctl.host.process import process_start_time
from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.loadtest.analysis.slo import latency_limits
from tritonctl.loadtest.analysis.summary import P99_REQUESTS
from tritonctl.loadtest.run import environment
from tritonctl.loadtest.run.environment import generator_python
from tritonctl.loadtest.run.plan import effective_slo, select_scenario
from tritonctl.project.file import load_project
from tritonctl.project.scenario import Poisson
from tritonctl.runtimes import quickstart
from tritonctl.runtimes.ports import reserved_ports
from tritonctl.runtimes.quickstart import EXAMPLE, FOLDER, quickstart_project
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles, write_state

FROM = f"examples/{EXAMPLE}"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A wheel with the shipped project file and a checkpoint of one small file."""
    wheel = tmp_path / "wheel"
    example = wheel / FROM
    (example / "checkpoint").mkdir(parents=True)
    (example / "checkpoint" / "config.json").write_text("{}", encoding="utf-8")
    (example / "prompts.jsonl").write_text("{}\n", encoding="utf-8")
    text = bundled.find(f"{FROM}/tritonctl.yaml").read_text(encoding="utf-8")
    shipped_ports = ("8000", "8001", "8002")
    # Whatever else this machine serves is not in the way, nor takes what is free now.
    with reserved_ports("127.0.0.1", dict.fromkeys(shipped_ports, 0)) as ports:
        for shipped_port, port in zip(shipped_ports, ports, strict=True):
            assert text.count(shipped_port) == 1
            text = text.replace(shipped_port, str(port))
        (example / "tritonctl.yaml").write_text(text, encoding="utf-8")
        monkeypatch.setattr(bundled, "_WHEEL", wheel)
        yield wheel


def test_fresh_folder(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a project around: ./tritonctl-quickstart, complete."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    project = quickstart_project(None)
    assert project.root == here / FOLDER
    model = project.models[quickstart.MODEL]
    assert project.path(model.checkpoint).is_dir()
    assert model.evaluation is not None
    assert project.path(model.evaluation.prompts).is_file()


def test_a_taken_port_is_replaced(shipped: Path, tmp_path: Path) -> None:
    """Something else listens on one of the three: that one is the system's to choose."""
    before = quickstart_project(tmp_path / "mine").server
    assert 0 not in {before.grpc_port, before.http_port, before.metrics_port}
    with socket.create_server(("127.0.0.1", before.http_port)):
        server = quickstart_project(tmp_path / "mine").server
    assert server.http_port == 0
    assert (server.grpc_port, server.metrics_port) == (before.grpc_port, before.metrics_port)


def test_the_next_commands_can_be_typed(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name where it is on PATH, else by the path that was typed: in a clone, .venv/bin/."""
    project = quickstart_project(tmp_path / "mine")
    program = project.root / ".venv" / "bin" / "tritonctl"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert _program_name(project) == str(program)
    monkeypatch.chdir(project.root)
    assert _program_name(project) == ".venv/bin/tritonctl"
    monkeypatch.setenv("PATH", str(program.parent))
    assert _program_name(project) == "tritonctl"


def test_ports_of_our_own_server_stay(shipped: Path, tmp_path: Path) -> None:
    """A second quickstart finds its server where the first one put it."""
    project = quickstart_project(tmp_path / "mine")
    pid = os.getpid()
    started = process_start_time(pid)
    assert started is not None
    port = project.server.http_port
    state = EmbeddedServer(
        pid=pid,
        process_started=started,
        address="127.0.0.1",
        grpc_port=1,
        http_port=port,
        metrics_port=2,
        repository="/r",
        models=[],
        settings="{}",
        shm_prefix="p_",
        exit_timeout_seconds=30,
    )
    write_state(ServerFiles.of(project), state)
    with socket.create_server(("127.0.0.1", port)):
        assert quickstart_project(tmp_path / "mine").server.http_port == port


def test_existing_folder_is_used_as_it_is(shipped: Path, tmp_path: Path) -> None:
    """What the user changed in it stays."""
    folder = tmp_path / "mine"
    first = quickstart_project(folder)
    file = first.root / "tritonctl.yaml"
    changed = file.read_text(encoding="utf-8").replace("precision: int8", "precision: fp32")
    file.write_text(changed, encoding="utf-8")
    assert quickstart_project(folder).models["speller"].engine.precision == "fp32"


def test_interrupted_copy_is_completed(shipped: Path, tmp_path: Path) -> None:
    """The project file comes last: without it the copy is done again."""
    folder = tmp_path / "mine"
    quickstart_project(folder)
    (folder / "tritonctl.yaml").unlink()
    (folder / "checkpoint" / "config.json").unlink()
    quickstart_project(folder)
    assert (folder / "checkpoint" / "config.json").is_file()


def test_the_shipped_project_around_us(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a checkout or an earlier quickstart folder: that one."""
    project = quickstart_project(tmp_path / "mine")
    monkeypatch.chdir(project.root / "checkpoint")
    assert quickstart_project(None).root == project.root


def test_a_foreign_project_around_us_is_left_alone(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's own project, or a broken one, is not the speller's."""
    (tmp_path / "tritonctl.yaml").write_text("schema: nonsense\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert quickstart_project(None).root == tmp_path / FOLDER


def test_wheel_without_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged installation is named as such."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(bundled, "_WHEEL", tmp_path / "empty")
    with pytest.raises(ConfigurationError, match="exists neither in the project nor in tritonctl"):
        quickstart_project(tmp_path / "mine")


def test_no_space_for_the_copy(shipped: Path, small_disk: Path) -> None:
    """Exit code 4; the folder is not taken for a whole one afterwards."""
    large = shipped / FROM / "checkpoint" / "model.safetensors"
    large.write_bytes(b"x" * 4_000_000)
    with pytest.raises(HostError, match="no space left while writing"):
        quickstart_project(small_disk / "mine")
    assert not (small_disk / "mine" / "tritonctl.yaml").exists()


@pytest.mark.parametrize("file", ["tritonctl.yaml", f"{FROM}/tritonctl.yaml"])
def test_the_first_load_test_can_succeed(file: str) -> None:
    """Even when half of it is warm-up: P99 is shown, and requests without a miss are a proof."""
    project = load_project(Path(__file__).parents[3] / file)
    _, scenario = select_scenario(project, "speller")
    assert isinstance(scenario.arrivals, Poisson)
    assert scenario.duration_seconds is not None
    least = scenario.arrivals.rate * scenario.duration_seconds / 2
    assert least >= P99_REQUESTS
    _, proven = share_bounds(0, least)
    slo = effective_slo(project, scenario).model_dump()
    assert [limit.name for limit in latency_limits(slo)] == ["ttft_p99_ms", "itl_p99_ms"]
    assert all(limit.allowed_share >= proven for limit in latency_limits(slo))
    assert slo["error_rate"] >= proven


@pytest.fixture
def no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the load generators' environment would be installed."""
    folder = tmp_path / "loadtest-1"
    monkeypatch.setattr(environment, "is_installed", lambda _: folder.exists())
    monkeypatch.setattr(environment, "environment_folder", lambda _: folder)
    return folder


def test_what_a_load_test_installs_is_announced(
    no_environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first load test installs it: what, how much, where; once."""

    def ensure(*_: object) -> Path:
        no_environment.mkdir(exist_ok=True)
        return no_environment

    monkeypatch.setattr(environment, "ensure_environment", ensure)
    generator_python(Console())
    told = " ".join(capsys.readouterr().err.split())
    assert "creating the load generators' environment" in told
    assert "240 MB in" in told
    assert no_environment.name in told
    generator_python(Console())
    assert capsys.readouterr().err == ""

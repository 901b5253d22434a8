# SPDX-License-Identifier: Apache-2.0
"""The project that `tritonctl quickstart` runs on: here, or copied into a fresh folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.host import bundled
from tritonctl.host.process import process_started
from tritonctl.server import quickstart
from tritonctl.server.ports import held_ports
from tritonctl.server.quickstart import EXAMPLE, FOLDER, quickstart_project
from tritonctl.server.state import EmbeddedServer, ServerFiles, write_state


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A wheel with the shipped project file and a checkpoint of one small file."""
    wheel = tmp_path / "wheel"
    example = wheel / EXAMPLE
    (example / "checkpoint").mkdir(parents=True)
    (example / "checkpoint" / "config.json").write_text("{}", encoding="utf-8")
    (example / "prompts.jsonl").write_text("{}\n", encoding="utf-8")
    text = bundled.find(f"{EXAMPLE}/tritonctl.yaml").read_text(encoding="utf-8")
    shipped_ports = ("8000", "8001", "8002")
    # Whatever else this machine serves is not in the way, nor takes what is free now.
    with held_ports("127.0.0.1", dict.fromkeys(shipped_ports, 0)) as ports:
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


def test_ports_of_our_own_server_stay(shipped: Path, tmp_path: Path) -> None:
    """A second quickstart finds its server where the first one put it."""
    project = quickstart_project(tmp_path / "mine")
    pid = os.getpid()
    started = process_started(pid)
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
    large = shipped / EXAMPLE / "checkpoint" / "model.safetensors"
    large.write_bytes(b"x" * 4_000_000)
    with pytest.raises(HostError, match="no space left while writing"):
        quickstart_project(small_disk / "mine")
    assert not (small_disk / "mine" / "tritonctl.yaml").exists()

# SPDX-License-Identifier: Apache-2.0
"""What doctor says of containers: programs that answer as the real ones do, on an own PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonctl.doctor.docker import container_findings, engine_finding
from tritonctl.doctor.findings import DoctorFinding
from tritonctl.host.gpus import InstalledGpu

H100 = InstalledGpu("NVIDIA H100 80GB HBM3", "9.0", "590.44.01", 81559)
# As Docker 28 and docker-compose 1.29 say it.
DENIED = (
    "permission denied while trying to connect to the Docker daemon socket at "
    "unix:///var/run/docker.sock: dial unix /var/run/docker.sock: connect: permission denied"
)
DOWN = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
    "Is the docker daemon running?"
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that PATH consists of."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, script: str) -> None:
    """A program of a few lines of sh."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)


def found(name: str, *gpus: InstalledGpu) -> DoctorFinding:
    """The finding of that name."""
    return next(f for f in container_findings(list(gpus)) if f.name == name)


@pytest.mark.parametrize(
    ("said", "detail", "command"),
    [
        (DENIED, "may not use", "usermod -aG docker"),
        (DOWN, "daemon is not running", "systemctl start"),
    ],
)
def test_an_engine_that_cannot_be_spoken_to(
    programs: Path, said: str, detail: str, command: str
) -> None:
    """No permission and no daemon are two things, with two remedies."""
    program(programs, "docker", f'echo "{said}" >&2; exit 1')
    finding = engine_finding()
    assert finding.status == "missing"
    assert detail in finding.detail
    assert command in finding.remedy
    assert finding.reason


def test_compose_v2(programs: Path) -> None:
    """As a plugin."""
    program(programs, "docker", '[ "$1" = compose ] && echo 2.40.3 || echo 28.2.2')
    assert (found("Compose").status, found("Compose").detail) == ("ok", "2.40.3")
    assert found("container engine").detail == "docker 28.2.2"


def test_compose_v1_is_told(programs: Path) -> None:
    """A docker-compose alone does not do."""
    program(programs, "docker", '[ "$1" = compose ] && exit 1; echo 28.2.2')
    program(programs, "docker-compose", "echo 1.29.2")
    finding = found("Compose")
    assert finding.status == "missing"
    assert "only v1 (1.29.2)" in finding.detail
    assert "docker-compose-plugin" in finding.remedy


def test_no_containers_at_all(programs: Path) -> None:
    """Both missing, neither required; nothing about GPUs that are not there."""
    assert programs.is_dir()
    findings = container_findings([])
    assert [(f.name, f.status, f.required) for f in findings] == [
        ("container engine", "missing", False),
        ("Compose", "missing", False),
    ]


def test_the_toolkit_must_be_known_to_docker(programs: Path) -> None:
    """Absent, installed only, configured."""
    program(programs, "docker", 'echo "{}"')
    assert "not installed" in found("NVIDIA container toolkit", H100).detail
    program(programs, "nvidia-ctk", 'echo "NVIDIA Container Toolkit CLI version 1.17.8"')
    finding = found("NVIDIA container toolkit", H100)
    assert finding.status == "missing"
    assert "nvidia-ctk runtime configure" in finding.remedy
    program(programs, "docker", """echo '{"nvidia":{"path":"nvidia-container-runtime"}} null'""")
    assert found("NVIDIA container toolkit", H100).status == "ok"

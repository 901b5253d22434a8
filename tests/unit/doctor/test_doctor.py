# SPDX-License-Identifier: Apache-2.0
"""`tritonctl doctor`: what the machine has, what it can run, when it says no."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.commands import run_here
from tritonctl.doctor.findings import DoctorFinding, DoctorReport
from tritonctl.doctor.gpus import engine_gpu_findings, gpu_finding, gpu_report
from tritonctl.doctor.machine import (
    clock_finding,
    disk_finding,
    glibc_finding,
    is_clock_synchronised,
    libpython_finding,
    open_files_finding,
    shm_finding,
    stub_python_finding,
)
from tritonctl.doctor.server import frontend_finding, holes_finding, ports_finding
from tritonctl.errors import HostError
from tritonctl.host import frontend_extra
from tritonctl.host.gpus import InstalledGpu, installed_gpus
from tritonctl.host.interpreters import Interpreter
from tritonctl.project.compatibility.table import table
from tritonctl.project.file import load_profiles
from tritonctl.project.frontend import Frontend, Ledger
from tritonctl.project.server import Tracing
from tritonctl.runtimes.ports import reserved_ports

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

H100 = "NVIDIA H100 80GB HBM3, 9.0, 590.44.01, 81559"
H200 = "NVIDIA H200, 9.0, 580.159.04, 143771"
OLD_4090 = "NVIDIA GeForce RTX 4090, 8.9, 575.57.08, 24564"


def list_gpus(folder: Path, answer: str, status: int = 0) -> Path:
    """A folder with an `nvidia-smi` that says `answer`."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    said = f"printf '%s\\n' {shlex.quote(answer)}"
    program.write_text(f"#!/bin/sh\n{said}\nexit {status}\n", encoding="utf-8")
    program.chmod(0o755)
    return folder


def doctor(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with that folder and nothing else on its PATH."""
    return run_here("doctor", *arguments, cwd=Path.cwd(), environment={"PATH": str(path)})


def test_a_machine_with_a_gpu(tmp_path: Path) -> None:
    """As JSON: the GPU, the releases its driver runs, its precisions in both worlds."""
    done = doctor(list_gpus(tmp_path / "bin", H100), "--json")
    record = json.loads(done.stdout)
    assert done.returncode == (0 if record["healthy"] else 4)
    (report,) = record["gpus"]
    assert report["gpu"]["compute_capability"] == "9.0"
    assert report["releases"][0] == "26.07"
    assert "fp8" in report["precisions"]["engine"]
    assert "nvfp4" not in report["precisions"]["engine"]
    assert "int8_sq" in report["precisions"]["engine"]
    assert "int8_sq" not in report["precisions"]["pytorch"]
    statuses = {finding["name"]: finding["status"] for finding in record["findings"]}
    assert statuses["NVIDIA GPU"] == "ok"
    assert statuses["container engine"] == "missing"


def test_a_machine_without_gpu_and_container_engine(tmp_path: Path) -> None:
    """Both are optional: what remains is said, and the exit code does not change."""
    (tmp_path / "empty").mkdir()
    done = doctor(tmp_path / "empty")
    assert "– NVIDIA GPU (optional): nvidia-smi is not installed" in done.stdout
    assert "– container engine (optional): no container engine" in done.stdout
    assert "builders openvino and onnxruntime, and quantising, run on this CPU" in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "Ready for CPU. For GPU: use a machine with an NVIDIA GPU and its driver."
    )


@pytest.mark.parametrize(
    ("missing", "summary"),
    [
        ((), "Ready for CPU and GPU."),
        (("x",), "Ready for CPU and GPU."),
        (("Compose",), "Ready for CPU. For GPU: Compose first: install it"),
        (("Compose", "NVIDIA GPU"), "Ready for CPU. For GPU: use a machine with an NVIDIA GPU"),
        (("glibc",), "Not ready: glibc"),
    ],
)
def test_the_last_line(missing: tuple[str, ...], summary: str) -> None:
    """What the machine is ready for, and the first thing to do for GPUs."""
    names = ("glibc", "NVIDIA GPU", "container engine", "Compose", "NVIDIA container toolkit", "x")
    findings = [
        DoctorFinding(
            name, "missing" if name in missing else "ok", "", "install it", name == "glibc"
        )
        for name in names
    ]
    report = DoctorReport(findings)
    assert report.summary.startswith(summary)
    assert report.as_record()["summary"] == report.summary


def test_what_an_h200_with_driver_580_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi's own line, as it was printed there."""
    monkeypatch.setenv("PATH", str(list_gpus(tmp_path / "bin", H200)))
    assert installed_gpus() == ([InstalledGpu("NVIDIA H200", "9.0", "580.159.04", 143771)], "")


def test_a_gpu_in_words(tmp_path: Path) -> None:
    """A line per world."""
    done = doctor(list_gpus(tmp_path / "bin", OLD_4090))
    assert "NVIDIA GeForce RTX 4090: 24 GiB\n    releases: 24.10 to 25.10\n" in done.stdout
    assert "    engines: bf16, fp16, fp8, int8_sq," in done.stdout


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ("", 0, "nvidia-smi lists no GPU"),
        ("No devices were found", 6, "nvidia-smi: No devices were found"),
        ("something, else", 0, "nvidia-smi lists no GPU"),
    ],
)
def test_gpus_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, reason: str
) -> None:
    """The reason is told instead of a list."""
    monkeypatch.setenv("PATH", str(list_gpus(tmp_path / "bin", answer, status)))
    assert installed_gpus() == ([], reason)
    assert gpu_finding([], reason).status == "missing"


def test_python() -> None:
    """3.11 and 3.12 have stubs: tritonctl's own, or another one for the embedded server."""
    old, new = (Interpreter(Path(f"/p/python3.{minor}"), (3, minor, 1)) for minor in (12, 14))
    assert stub_python_finding(old, old).status == "ok"
    other = stub_python_finding(new, old)
    assert (other.status, other.detail.count("3.12.1"), other.detail.count("3.14.1")) == (
        "ok",
        1,
        1,
    )
    finding = stub_python_finding(new, None)
    assert (finding.status, finding.required) == ("missing", True)
    assert "uv python install 3.12" in finding.remedy
    assert "server.mode: docker" in finding.remedy


@pytest.mark.parametrize(
    ("library", "status"),
    [(("glibc", "2.35"), "ok"), (("glibc", "2.31"), "missing"), (("", ""), "missing")],
)
def test_c_library(library: tuple[str, str], status: str) -> None:
    """Debian 11 and Alpine cannot run the embedded server."""
    assert glibc_finding(library).status == status


def test_libpython() -> None:
    """A static interpreter cannot host Triton's Python backend."""
    static = Interpreter(Path("/p/bin/python3.12"), (3, 12, 1))
    assert "--enable-shared" in libpython_finding(static).remedy
    shared = replace(static, libraries=(Path("/p/lib"),))
    found = libpython_finding(shared)
    assert (found.status, found.detail) == ("ok", "/p/lib/libpython3.12.so.1.0")


def test_disk(small_disk: Path) -> None:
    """2 MiB are not enough; a folder that does not exist yet is on its parent's disk."""
    finding = disk_finding(small_disk / "cache" / "tritonctl")
    assert (finding.status, finding.required) == ("missing", True)
    assert finding.detail.startswith("0 GiB free")


def test_only_required_things_make_it_unhealthy() -> None:
    """A warning or a missing option does not."""
    optional = DoctorFinding("x", "missing", "")
    warned = DoctorFinding("y", "warning", "", required=True)
    assert DoctorReport([optional, warned]).healthy
    assert not DoctorReport([DoctorFinding("z", "missing", "", required=True)]).healthy


def test_an_old_driver() -> None:
    """On a desk it bounds the releases; in a data centre it is warned about."""
    shipped = table()
    desk = gpu_report(InstalledGpu("NVIDIA GeForce RTX 4090", "8.9", "550.54", 24564), shipped)
    assert "26.07" not in desk.releases
    server = gpu_report(InstalledGpu("NVIDIA L40S", "8.9", "550.54.14", 46068), shipped)
    assert server.releases[0] == "26.07"
    assert "CUDA compatibility package" in server.warnings[0]


def test_a_gpu_before_ampere() -> None:
    """Triton runs on it, TensorRT-LLM does not."""
    report = gpu_report(InstalledGpu("Tesla T4", "7.5", "590.44.01", 15360), table())
    assert report.releases == []
    assert report.precisions == {"engine": [], "pytorch": []}


def test_shared_memory(small_disk: Path) -> None:
    """2 MiB refuse requests; no /dev/shm at all starts no server."""
    full = shm_finding(small_disk)
    assert (full.status, full.required) == ("missing", True)
    assert "when it is full, requests fail" in full.reason
    assert "remount,size=1g" in full.remedy
    assert shm_finding(small_disk / "none").status == "missing"


@pytest.mark.parametrize(
    ("limits", "status", "remedy"),
    [
        ((65536, 65536), "ok", ""),
        ((-1, -1), "ok", ""),
        ((1024, 524288), "warning", "ulimit -n 524288"),
        ((1024, -1), "warning", "ulimit -n 65536"),
        ((1024, 1024), "warning", "limits.conf"),
    ],
)
def test_open_files(limits: tuple[int, int], status: str, remedy: str) -> None:
    """The command fits what the hard limit allows."""
    finding = open_files_finding(limits)
    assert finding.status == status
    assert remedy in finding.remedy


def test_clock() -> None:
    """Kept, not kept, unknown, gone back; and the kernel of this machine says one of them."""
    assert clock_finding(True, newest=10.0, now=20.0).status == "ok"
    assert clock_finding(False, newest=10.0, now=20.0).status == "warning"
    assert clock_finding(None, newest=10.0, now=20.0).status == "ok"
    gone_back = clock_finding(True, newest=4000.0, now=400.0)
    assert gone_back.status == "warning"
    assert gone_back.detail.startswith("3600 s behind")
    assert is_clock_synchronised() in (True, False, None)


@pytest.mark.parametrize("field", ["http_port", "readiness_port"])
def test_a_taken_port_is_named(sandbox: Sandbox, field: str) -> None:
    """With its field, and who to ask."""
    with reserved_ports("127.0.0.1", {field: 0}) as (port,):
        sandbox.data["server"][field] = port
        with socket.create_server(("127.0.0.1", port)):
            finding = ports_finding(sandbox.load())
        assert ports_finding(sandbox.load()).status == "ok"
    assert finding.status == "missing"
    assert f"{port} (server.{field})" in finding.detail
    assert f"--set server.{field}=0" in finding.remedy


def test_a_taken_port_of_the_frontend(sandbox: Sandbox) -> None:
    """As the server's; without a frontend it is nobody's business."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        sandbox.data["frontend"] = {"port": port}
        finding = ports_finding(sandbox.load())
    assert f"{port} (frontend.port)" in finding.detail
    assert "--set frontend.port=0" in finding.remedy


def test_the_frontends_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing ones are named, with the command that installs them."""
    settings = Frontend(ledger=Ledger(redis="redis://127.0.0.1:6379/0"))
    assert frontend_finding(settings).status == "ok"
    gone = {"uvicorn", "redis.asyncio"}
    monkeypatch.setattr(frontend_extra, "find_spec", lambda name: None if name in gone else name)
    finding = frontend_finding(Frontend())
    assert (finding.status, finding.required) == ("missing", True)
    assert finding.detail == "not installed: uvicorn"
    assert finding.remedy == "pip install 'tritonctl[frontend]'"
    detail = frontend_finding(settings).detail
    assert detail == "not installed: uvicorn, redis (for frontend.ledger)"


def test_what_a_package_is_in_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then Python raises, instead of finding nothing."""

    def find(name: str) -> str:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(name)
        return name

    monkeypatch.setattr(frontend_extra, "find_spec", find)
    with pytest.raises(HostError, match=r"opentelemetry-sdk \(for frontend\.tracing\)"):
        frontend_extra.require_extra(
            Frontend(tracing=Tracing(endpoint="http://127.0.0.1:4318/v1/traces"))
        )


@pytest.mark.parametrize(("replicas", "told"), [(1, True), (2, False)])
def test_ports_of_containers(replicas: int, told: bool, sandbox: Sandbox) -> None:
    """The gateway's count, too; those of several servers are Docker's choice."""
    sandbox.data["docker"] = {"replicas": replicas}
    with socket.socket() as servers, socket.socket() as gateways:
        for other in (servers, gateways):
            other.bind(("127.0.0.1", 0))
            other.listen()
        port, edge = servers.getsockname()[1], gateways.getsockname()[1]
        sandbox.data["server"] |= {"mode": "docker", "grpc_port": port}
        sandbox.data["gateway"] = {"port": edge}
        finding = ports_finding(sandbox.load())
    assert finding.status == "missing"
    assert (f"{port} (server.grpc_port)" in finding.detail) is told
    assert f"{edge} (gateway.port)" in finding.detail
    assert told or "choose another gateway.port" in finding.remedy


def test_known_holes_of_the_embedded_server(sandbox: Sandbox) -> None:
    """A warning, for it stays on loopback."""
    finding = holes_finding(sandbox.load(), table())
    assert finding.status == "warning"
    assert "CVE-2025-" in finding.detail
    assert "loopback only" in finding.detail


def test_gpus_that_profiles_need(sandbox: Sandbox) -> None:
    """As many, and of the kind that the engine is built for."""
    engine = {
        "builder": "tensorrt_llm",
        "precision": "fp8",
        "tp_size": 2,
        "target": {"gpu": "H100"},
    }
    sandbox.data["profiles"] = {"h100": {"models": {"speller": {"engine": engine}}}}
    sandbox.engine["options"] = {}
    sandbox.write()
    profiles = load_profiles(sandbox.file, environment={})
    h100 = InstalledGpu("NVIDIA H100 80GB HBM3", "9.0", "590.44.01", 81559)
    l40s = InstalledGpu("NVIDIA L40S", "8.9", "590.44.01", 46068)
    (none,) = engine_gpu_findings(profiles, [], table())
    assert none.name == "GPUs for speller (h100)"
    assert none.detail == "2 needed of compute capability 9.0, 0 here"
    (other,) = engine_gpu_findings(profiles, [l40s, l40s], table())
    assert "compute_capability: '8.9'" in other.remedy
    (enough,) = engine_gpu_findings(profiles, [h100, h100], table())
    assert enough.status == "ok"


def test_a_project_that_cannot_be_read_is_a_finding(sandbox: Sandbox) -> None:
    """The rest of the machine is looked at all the same."""
    sandbox.file.write_text("schema: tritonctl/v1\nmodel: {}\n", encoding="utf-8")
    done = run_here("doctor", cwd=sandbox.root)
    assert done.stdout.startswith("– project (optional):")
    assert "Python: 3." in done.stdout

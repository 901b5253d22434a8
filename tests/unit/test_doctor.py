# SPDX-License-Identifier: Apache-2.0
"""`tritonctl doctor`: what the machine has, what it can run, when it says no."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tritonctl.compatibility_table import table
from tritonctl.doctor import (
    Finding,
    Report,
    disk_finding,
    glibc_finding,
    gpu_finding,
    gpu_report,
    libpython_finding,
    python_finding,
)
from tritonctl.gpus import InstalledGpu, installed_gpus

H100 = "NVIDIA H100 80GB HBM3, 9.0, 590.44.01, 81559"
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
    """The real command, with that folder and nothing else on its PATH."""
    return subprocess.run(
        [sys.executable, "-m", "tritonctl", "doctor", *arguments],
        env=os.environ | {"PATH": str(path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


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
    assert "✗ NVIDIA GPU (optional): nvidia-smi is not installed" in done.stdout
    assert "✗ container engine (optional): no container engine" in done.stdout
    assert "builders openvino and onnxruntime, and quantising, run on this CPU" in done.stdout


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
    """3.11 and 3.12 have stubs and wheels."""
    assert python_finding((3, 12)).status == "ok"
    finding = python_finding((3, 13))
    assert (finding.status, finding.required) == ("missing", True)
    assert finding.remedy == "install tritonctl under Python 3.11 or 3.12"


@pytest.mark.parametrize(
    ("library", "status"),
    [(("glibc", "2.35"), "ok"), (("glibc", "2.31"), "missing"), (("", ""), "missing")],
)
def test_c_library(library: tuple[str, str], status: str) -> None:
    """Debian 11 and Alpine cannot run the embedded server."""
    assert glibc_finding(library).status == status


def test_libpython() -> None:
    """A static interpreter cannot host Triton's Python backend."""
    assert libpython_finding("libpython3.12.so.1.0").status == "ok"
    assert "--enable-shared" in libpython_finding(None).remedy


def test_disk(small_disk: Path) -> None:
    """2 MiB are not enough; a folder that does not exist yet is on its parent's disk."""
    finding = disk_finding(small_disk / "cache" / "tritonctl")
    assert (finding.status, finding.required) == ("missing", True)
    assert finding.detail.startswith("0 GiB free")


def test_only_required_things_make_it_unhealthy() -> None:
    """A warning or a missing option does not."""
    optional = Finding("x", "missing", "")
    warned = Finding("y", "warning", "", required=True)
    assert Report([optional, warned]).healthy
    assert not Report([Finding("z", "missing", "", required=True)]).healthy


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

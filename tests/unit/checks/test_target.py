# SPDX-License-Identifier: Apache-2.0
"""Where a repository will be served: this machine, another, a project's container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.check_models.models import CONFIG, python_model
from tests.unit.checks.repositories import put
from tests.unit.conftest import Sandbox
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import ExampleFile
from tritonctl.checks.examples.onnx import onnx_file
from tritonctl.checks.repository import CheckTarget, OpenAi
from tritonctl.checks.target import target_from_host, target_from_options
from tritonctl.cli import application
from tritonctl.cli.target_options import TargetOptions
from tritonctl.errors import UsageError
from tritonctl.host.progress import Silent
from tritonctl.repository.publish import render
from tritonctl.repository.target import EMBEDDED_BACKENDS, with_project_facts


def test_this_machine() -> None:
    """Its GPUs are unknown: it may not be where the models are served."""
    target = target_from_host(CheckTarget("2.51.0"))
    assert target.version == "2.51.0"
    assert target.cores is not None
    assert 1 <= target.cores <= len(os.sched_getaffinity(0))
    assert target.shared_memory_bytes is None or target.shared_memory_bytes > 0
    assert target.memory_bytes is not None
    assert target.gpus is None


def test_another_machine() -> None:
    """As options describe it; sizes as Docker takes them."""
    target = target_from_options(CheckTarget(cores=2, gpus=(1,)), 64, "1TiB", "64m", "24G, 80GiB")
    assert (target.cores, target.memory_bytes) == (64, 1 << 40)
    assert target.shared_memory_bytes == 64 << 20
    assert target.gpus == (24 << 30, 80 << 30)
    assert target_from_options(target, None, None, None, None) == target
    assert target_from_options(target, None, None, None, "none").gpus == ()
    for wrong in ("", "24G,", "two"):
        with pytest.raises(UsageError):
            target_from_options(target, None, None, None, wrong)


def test_a_server_elsewhere() -> None:
    """Nothing of this machine is known of it; what options say holds."""
    options = TargetOptions(target_version="24.10", shm_size="64m")
    target = options.target(None, version="2.52.0", is_local=False)
    assert target == CheckTarget("2.51.0", shared_memory_bytes=64 << 20, named_by_user=True)
    assert TargetOptions("24.10").target(None, version=None, is_local=True).cores is not None


def test_the_version_that_a_server_reports() -> None:
    """It counts where no option says another, and nobody asked for its known vulnerabilities."""
    target = TargetOptions().target(None, version="2.51.0", is_local=False)
    assert target == CheckTarget("2.51.0", named_by_user=False)


def test_a_project(built: Sandbox) -> None:
    """What its models promise holds for their steps; in a container, its shared memory."""
    assert with_project_facts(CheckTarget(), built.load()) == CheckTarget(completes=False)
    built.data["models"]["speller"]["slo"] = {"ttft_p99_ms": 500, "e2e_p99_ms": 9000}
    built.write()
    promised = with_project_facts(CheckTarget(), built.load()).slo_ms
    assert promised["speller"] == promised["speller_engine"] == 500
    assert "speller_tokenizer" in promised
    built.data["server"] = {"mode": "docker"}
    built.data["docker"] = {"shm_size": "1g", "memory": "8g"}
    built.write()
    contained = with_project_facts(CheckTarget(memory_bytes=1), built.load())
    assert (contained.shared_memory_bytes, contained.memory_bytes) == (1 << 30, 8 << 30)
    del built.data["docker"]
    built.write()
    computed = with_project_facts(CheckTarget(memory_bytes=1, shared_memory_bytes=1), built.load())
    assert computed.memory_bytes is computed.shared_memory_bytes is None


def test_what_a_frontend_offers(built: Sandbox) -> None:
    """Its models for text, aliases and tenants' keys; a key of two tenants is a finding."""
    built.data["frontend"] = {"aliases": {"gpt": "speller"}}
    built.data["gateway"] = {"tenants": {name: {"api_key_file": name} for name in ("a", "b")}}
    built.write()
    for name in ("a", "b"):
        (built.root / name).write_text("the-same\n", encoding="utf-8")
    target = with_project_facts(CheckTarget("2.51.0"), built.load())
    keys = {name: built.root.resolve() / name for name in ("a", "b")}
    assert target.openai == OpenAi(["speller"], {"gpt": "speller"}, keys)
    repository = render(built.load(), Silent()).repository
    found = [f for f in check_repository(repository, target).findings if f.rule == "TC922"]
    assert [finding.path for finding in found] == [str(file) for file in keys.values()]
    assert "the same key as b" in found[0].message
    assert not any("the-same" in finding.message for finding in found)


def test_options(tmp_path: Path) -> None:
    """They reach the rules."""
    group = "instance_group [ { kind: KIND_GPU gpus: [ 1 ] } ]\n"
    put(tmp_path, python_model(CONFIG + group))

    def check(*arguments: str) -> str:
        return CliRunner().invoke(application(), ["check", str(tmp_path), *arguments]).output

    assert "TC600" in check("--gpu-memory", "none")
    assert "TC601" in check("--gpu-memory", "24G")
    assert "TC6" not in check("--gpu-memory", "24G,24G")
    assert "TC802" in check("--shm-size", "512k")
    assert "TC813" not in check("--memory", "1m")
    assert "is not an amount of memory" in check("--shm-size", "much")


def test_a_server_that_completes_nothing(tmp_path: Path) -> None:
    """As its option says, and as a project's own server is started."""
    put(tmp_path, {"m/1/model.onnx": ExampleFile(onnx_file())})

    def check(*arguments: str) -> Result:
        return CliRunner().invoke(application(), ["check", str(tmp_path), *arguments])

    assert check().exit_code == 0
    strict = check("--disable-auto-complete-config")
    assert strict.exit_code == 6
    assert "TC029" in strict.output


def test_the_backends_of_the_projects_server(built: Sandbox) -> None:
    """An embedded server has one; those of other servers and versions are unknown."""
    assert (
        TargetOptions().target(built.load(), version=None, is_local=True).backends
        == EMBEDDED_BACKENDS
    )
    assert TargetOptions().target(None, version=None, is_local=True).backends is None
    assert TargetOptions().target(built.load(), version=None, is_local=False).backends is None
    newer = TargetOptions(target_version="24.10")
    assert newer.target(built.load(), version=None, is_local=True).backends is None
    built.data["server"] = {"mode": "docker"}
    built.write()
    assert TargetOptions().target(built.load(), version=None, is_local=True).backends is None

# SPDX-License-Identifier: Apache-2.0
"""What a container is given, above all the files that a stage's options name: they count, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import EXAMPLE
from tests.unit.engines.test_stages import staged
from tritonctl.engines.builds.catalog import BuilderStage, builder_named
from tritonctl.engines.builds.dry_run import plan_runs
from tritonctl.engines.builds.option_files import option_files
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.errors import ConfigurationError
from tritonctl.project.file import load_project

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

__all__ = ["staged"]
STAGE = BuilderStage(name="package", runners=["current"], reads=["lora_config.lora_dir", "file"])


@pytest.fixture
def adapters(staged: Sandbox) -> Path:
    """The second stage of the sandbox's builder reads `adapters`, which are there."""
    file = staged.root / "builders" / "scripted" / "builder.toml"
    text = file.read_text(encoding="utf-8").replace(
        'name = "compile"', 'name = "compile"\nreads = ["lora.dirs"]'
    )
    file.write_text(text, encoding="utf-8")
    folder = staged.root / "adapters"
    for name in ("french", "german"):
        (folder / name).mkdir(parents=True)
        (folder / name / "weights").write_text(name, encoding="utf-8")
    dirs = [str(folder / name) for name in ("french", "german")]
    staged.engine["options"]["compile"]["lora"] = {"dirs": dirs}
    return folder


def container_command(sandbox: Sandbox) -> tuple[str, ...]:
    """What the last stage would be started with in a container."""
    sandbox.engine["runner"] = "container"
    sandbox.engine["target"] = {"image": "tritonctl-test/none:1"}
    return plan_runs(plan_stages(sandbox.load(), "speller"))[-1].commands[0]


def fingerprints(sandbox: Sandbox) -> list[str]:
    return [build.fingerprint.digest for build in plan_stages(sandbox.load(), "speller")]


def test_their_content_counts(staged: Sandbox, adapters: Path) -> None:
    """For the stage that reads them; the one before is not made again."""
    before = fingerprints(staged)
    assert fingerprints(staged) == before
    inputs = plan_stages(staged.load(), "speller")[1].fingerprint.inputs
    assert {"options.lora.dirs.0", "options.lora.dirs.1"} <= set(inputs)
    (adapters / "german" / "weights").write_text("deutsch", encoding="utf-8")
    after = fingerprints(staged)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_container_sees_them(staged: Sandbox, adapters: Path) -> None:
    """Read-only, under their own paths; the stage that does not read them does not."""
    compiling = " ".join(container_command(staged))
    quantise = " ".join(plan_runs(plan_stages(staged.load(), "speller"))[0].commands[0])
    for name in ("french", "german"):
        place = adapters / name
        assert f"--mount type=bind,source={place},target={place},readonly" in compiling
        assert str(place) not in quantise


def test_a_container_sees_serving_s_code_that_its_proof_runs(staged: Sandbox) -> None:
    """Under its own path, as the builder's own files."""
    library = staged.root / "python_backends" / "steplib"
    library.mkdir(parents=True)
    table = next((staged.root / "builders").glob("*/builder.toml"))
    text = table.read_text(encoding="utf-8")
    table.write_text(
        text.replace("precisions =", 'proof_libraries = ["steplib"]\nprecisions =', 1),
        encoding="utf-8",
    )
    command = " ".join(container_command(staged))
    assert f"type=bind,source={library},target={library},readonly" in command


def test_what_is_named_twice_is_mounted_once(staged: Sandbox) -> None:
    """Docker refuses a second mount at the same place: prompts that calibrate, too."""
    prompts = staged.root / "prompts.jsonl"
    prompts.write_text('{"text_input": "1"}\n', encoding="utf-8")
    staged.data["models"]["speller"]["evaluation"] = {"prompts": "prompts.jsonl"}
    staged.engine["calibration"] = {"data": "prompts.jsonl"}
    command = container_command(staged)
    assert command.count(f"type=bind,source={prompts},target={prompts},readonly") == 1


def test_weights_beside_an_onnx_file_are_mounted(staged: Sandbox) -> None:
    """A graph above 2 GB keeps them outside; what it does not name is not seen."""
    graph = staged.root / "checkpoint" / "model.onnx"
    graph.write_bytes(b"\x0a\x08location\x12\x0bweights.bin")  # external_data of a tensor
    for name in ("weights.bin", "other.bin"):
        graph.with_name(name).write_bytes(b"\0")
    staged.data["models"]["speller"]["checkpoint"] = "checkpoint/model.onnx"
    command = " ".join(container_command(staged))
    for path in (graph, graph.with_name("weights.bin")):
        assert f"type=bind,source={path},target={path},readonly" in command
    assert "other.bin" not in command


@pytest.mark.parametrize("programs", [(), ("nvidia-smi",)])
def test_gpus_for_a_stage_that_runs_on_a_cpu_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...]
) -> None:
    """Those of this machine, whatever the target has: Docker refuses `--gpus` without any."""
    for name in programs:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = {
        "builder": "tensorrt_llm",
        "precision": "fp8",
        "runner": "container",
        "target": {"release": "26.07", "gpu": "H100"},
    }
    model = {"checkpoint": str(EXAMPLE / "checkpoint"), "engine": engine}
    contents = {"schema": "tritonctl/v1", "models": {"m": model}}
    (tmp_path / "tritonctl.yaml").write_text(json.dumps(contents), encoding="utf-8")
    quantise, compiling = (
        run.commands[0] for run in plan_runs(plan_stages(load_project(tmp_path), "m"))
    )
    assert quantise[0] == "docker"
    assert quantise[-5].endswith("tensorrt_llm/quantise.py")
    assert ("--gpus" in quantise) == bool(programs)
    assert "--gpus" in compiling


@pytest.mark.parametrize(
    ("place", "said"),
    [("adapters/french", "expected an absolute path"), ("/none", "does not exist")],
)
def test_one_that_is_wrong_is_refused(
    staged: Sandbox, adapters: Path, place: str, said: str
) -> None:
    """Before anything runs, named by its field."""
    assert adapters.is_dir()
    staged.engine["options"]["compile"]["lora"]["dirs"] = [place]
    with pytest.raises(ConfigurationError, match=said) as caught:
        plan_stages(staged.load(), "speller")
    assert caught.value.problem.startswith("engine.options.compile.lora.dirs")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_config": None},
        {"lora_config": {"lora_dir": None}},
        {"lora_config": {"lora_dir": 3}},
    ],
)
def test_none_is_named(options: dict[str, Any]) -> None:
    """What is no text is the program's to refuse."""
    assert option_files(STAGE, options) == {}


def test_one_or_a_list(tmp_path: Path) -> None:
    """Both forms that options have."""
    options = {"lora_config": {"lora_dir": [str(tmp_path)]}, "file": str(tmp_path)}
    assert option_files(STAGE, options) == {"lora_config.lora_dir.0": tmp_path, "file.0": tmp_path}


def test_the_builder_says_what_it_reads() -> None:
    """Both worlds of TensorRT-LLM have adapters."""
    stages = {stage.name: stage.reads for stage in builder_named("tensorrt_llm").stages}
    assert stages == {
        "quantise": [],
        "compile": ["lora_dir"],
        "package": ["lora_config.lora_dir"],
    }

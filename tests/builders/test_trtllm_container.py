# SPDX-License-Identifier: Apache-2.0
"""The stage compile where it usually runs: in a container, started by `tritonctl build`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests import container_engine
from tests.builders import trtllm
from tests.builders.conftest import BUILDERS
from tritonctl.engines.builds.engine import Artefact, build_engine
from tritonctl.errors import BuildFailedError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project

pytestmark = pytest.mark.docker

IMAGE = "tritonctl-test/trtllm:1"
SMI = "print('0, NVIDIA H100 80GB HBM3, 9.0, 590.44.01, 81559')\n"
# The stage before, without ModelOpt: the quantised checkpoint lies beside the script.
QUANTISE = """# SPDX-License-Identifier: Apache-2.0
import json, shutil, sys
from pathlib import Path
shared = Path(__file__).resolve().parents[1] / "shared"
sys.path.append(str(shared))
from buildlib.artefact import list_files
shutil.copytree(Path(__file__).parent / "quantised" / "checkpoint", "checkpoint")
nothing = {"inputs": [], "outputs": []}
result = {"schema": "tritonctl.build-result/1", "status": "ok"}
result |= {"files": list_files([Path("checkpoint")])}
result |= {"tensors": nothing, "limits": {"max_batch_size": 4}, "model": None, "runtime": {}}
result |= {"versions": {}, "hardware": {}, "durations_seconds": {}, "evaluation": None}
Path(sys.argv[4]).write_text(json.dumps(result))
"""
BUILDER = """# SPDX-License-Identifier: Apache-2.0
schema = "tritonctl.builder/1"
name = "trt"
summary = "our stage compile behind a stage that only copies"
tasks = ["text_generation"]
precisions = ["fp8"]
architectures = ["LlamaForCausalLM"]
python_backend = "openvino_engine"
targets = "tensorrt_llm"
shares = ["buildlib"]
max_num_tokens = 8192
[[stages]]
name = "quantise"
script = "quantise.py"
runners = ["current"]
[[stages]]
name = "compile"
script = "compile.py"
runners = ["container"]
"""

Build = Callable[..., Artefact]


@pytest.fixture
def build(python_image: str, checkpoint: Path, tmp_path: Path) -> Build:
    """Build a project whose builder compiles in an image with our trtllm-build."""
    tool = trtllm.FAKE_TOOL.read_text(encoding="utf-8")
    table = trtllm.ARGUMENTS.read_text(encoding="utf-8")
    programs = {"trtllm-build": tool, trtllm.ARGUMENTS.name: table, "nvidia-smi": SMI}
    container_engine.add_programs(IMAGE, programs)
    folder = tmp_path / "builders" / "trt"
    shutil.copytree(BUILDERS / "tensorrt_llm", folder)
    shutil.copytree(BUILDERS / "shared", tmp_path / "builders" / "shared")
    shutil.copy(BUILDERS / "compatibility.toml", tmp_path / "builders")
    (folder / "builder.toml").write_text(BUILDER, encoding="utf-8")
    (folder / "quantise.py").write_text(QUANTISE, encoding="utf-8")
    trtllm.quantised_checkpoint(folder / "quantised")

    def run(release: str = "26.07") -> Artefact:
        target = {"release": release, "image": IMAGE}
        engine = {"builder": "trt", "precision": "fp8", "max_batch_size": 4, "target": target}
        model = {"checkpoint": str(checkpoint), "engine": engine}
        project = {"schema": "tritonctl/v1", "models": {"m": model}}
        (tmp_path / "tritonctl.yaml").write_text(yaml.safe_dump(project), encoding="utf-8")
        return build_engine(load_project(tmp_path), "m", Silent())

    return run


def test_an_engine_is_compiled_in_the_image(build: Build) -> None:
    """Read-only folders, no network, no privileges: the stage needs no more."""
    artefact = build()
    result = artefact.manifest.result
    assert (artefact.folder / "engine" / "rank0.engine").read_bytes() == b"engine of rank 0"
    assert result.runtime["world"] == "engine"
    assert result.versions["tensorrt_llm"] == "1.2.1"
    assert result.versions["image"] == IMAGE
    assert result.hardware["gpu"] == "NVIDIA H100 80GB HBM3"
    log = (artefact.folder / "build.log").read_text(encoding="utf-8")
    assert "@progress 100 rank 1 of 1: engine written" in log
    assert not build().is_new


def test_an_image_of_another_release(build: Build) -> None:
    """The engine's own version tells, however the image is called."""
    with pytest.raises(BuildFailedError, match=r"compiled by TensorRT-LLM 1\.2\.1") as caught:
        build(release="26.02")
    assert "release 26.02 serves with 1.1.0" in caught.value.problem

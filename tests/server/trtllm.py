# SPDX-License-Identifier: Apache-2.0
"""A project whose engine is trtllm_engine over the stand-in of TensorRT-LLM, on a CPU.

project = trtllm_project(folder, world="engine", version="1.2.1")
state, _ = start(project, render(project, Silent()), Silent())
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import EXAMPLE
from tests.fakes import FAKES, copy_tensorrt_llm
from tests.servers import ON_FREE_PORTS
from tritonctl.engines.builds.engine import build_engine
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project

HERE = Path(__file__).parent
RUNTIME = {"guided_decoding_backend": "xgrammar", "gather_generation_logits": True}


def trtllm_project(
    folder: Path, *, world: str, version: str, serving: Mapping[str, Any] | None = None
) -> Project:
    """Write and build a project with the model `speller`, on free ports."""
    lay_out_stand_in(folder, version)
    model = {
        "checkpoint": str(EXAMPLE / "checkpoint"),
        "engine": stand_in_engine(world, version),
        "serving": {"runtime": RUNTIME, **(serving or {})},
    }
    file = folder / "tritonctl.yaml"
    contents = {"schema": "tritonctl/v1", "models": {"speller": model}, "server": ON_FREE_PORTS}
    file.write_text(json.dumps(contents), encoding="utf-8")
    project = load_project(file)
    build_engine(project, "speller", Silent())
    return project


def stand_in_engine(world: str, version: str) -> dict[str, Any]:
    """The section `engine` of a model that the stand-in serves."""
    return {
        "builder": "trtllm_stand_in",
        "precision": "fp32",
        "max_seq_len": 512,
        "options": {"world": world, "version": version},
    }


def lay_out_stand_in(folder: Path, version: str) -> None:
    """The backend as it is, but with the stand-in beside it: stubs ignore PYTHONPATH."""
    builder = folder / "builders" / "trtllm_stand_in"
    shutil.copytree(HERE / "trtllm_builder", builder)
    shutil.copy2(FAKES / "trtllm_artefact.py", builder)
    backend = folder / "python_backends" / "trtllm_engine"
    shutil.copytree(bundled.find("python_backends/trtllm_engine"), backend)
    text = (backend / "backend.toml").read_text(encoding="utf-8")
    shares = 'shares = ["textlib", "trtllmlib"]'
    assert shares in text
    own = text.replace(shares, 'shares = ["tensorrt_llm", "textlib", "trtllmlib"]')
    (backend / "backend.toml").write_text(own, encoding="utf-8")
    copy_tensorrt_llm(folder / "python_backends", version)

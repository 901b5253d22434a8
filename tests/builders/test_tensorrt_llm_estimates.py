# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl plan` says of quantised checkpoints, against what ModelOpt really exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine_cache import build_cached
from tritonctl.engines.artefacts.store import stored_artefacts
from tritonctl.engines.artefacts.usage import find_uses
from tritonctl.engines.builds.engine import built_engine
from tritonctl.engines.planning.plans import plan_model
from tritonctl.project.file import load_profiles

pytestmark = pytest.mark.engine

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLE = CHECKOUT / "examples" / "number-speller"
# benchmarks/results/estimates.md: a file of so small a model is 1 % header.
TOLERANCE = 0.02


def test_weights_and_stages(tmp_path: Path) -> None:
    """The size of the exported weights; the finished engine keeps the stage it came from."""
    engine = {
        "builder": "tensorrt_llm",
        "precision": "fp8",
        "max_seq_len": 512,
        "target": {"gpu": "H100", "world": "pytorch"},
        "calibration": {"data": str(EXAMPLE / "prompts.jsonl"), "samples": 16},
    }
    models = {"speller": {"checkpoint": str(EXAMPLE / "checkpoint"), "engine": engine}}
    project = {"schema": "tritonctl/v1", "models": models}
    (tmp_path / "tritonctl.yaml").write_text(json.dumps(project), encoding="utf-8")
    profiles = load_profiles(tmp_path, environment={})
    plan = plan_model(profiles[None], "speller")
    build_cached(profiles[None])
    built = built_engine(profiles[None], "speller")
    artefacts = {s.record.stage: s for s in stored_artefacts(profiles[None]) if s.record}
    quantised, package = artefacts["quantise"], artefacts["package"]
    weights = sum(f.stat().st_size for f in quantised.folder.rglob("*.safetensors"))
    assert plan.weights == pytest.approx(weights, rel=TOLERANCE)
    assert package.folder == built.folder
    uses = find_uses(profiles, artefacts.values())
    assert uses[package.folder].profiles == [None]
    assert uses[quantised.folder].source_of == [package.name]

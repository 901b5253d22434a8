# SPDX-License-Identifier: Apache-2.0
"""A project with two slots behind Envoy, and releases of it: a sound one, one for each fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import CHECKOUT, EXAMPLE, MODEL, SILENT
from tritonctl import Project, build_engine, load_project
from tritonctl.releases.publish import Trial, publish
from tritonctl.releases.store import StoredRelease
from tritonctl.runtimes.staging_server import skip_smoke_test

USER_HEADER = "x-user-id"
FIRST_TOKEN_SECONDS, STEP_SECONDS = 0.08, 0.004
SOUND, INT4, WRONG_TEXT = "none", "int4", "wrong_text"
_ENGINE = "python_backends/openvinolib"
_PIPELINE = """

from openvinolib.planted import planted  # noqa: E402

OpenvinoEngine = planted(OpenvinoEngine)
"""
_DETOKENIZER = """

import dataclasses  # noqa: E402

_whole = TritonPythonModel.initialize


def _initialize(self, args):
    _whole(self, args)
    swapped = {
        name: [piece.swapcase() for piece in getattr(self._table, name)]
        for name in ("data", "first_data")
    }
    self._table = dataclasses.replace(self._table, **swapped)


TritonPythonModel.initialize = _initialize
"""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a candidate. name: as planted.py knows it. goal: what the issue asks."""

    name: str
    words: str
    goal: str

    @property
    def precision(self) -> str:
        """Of its engine."""
        return "int4" if self.name == INT4 else "fp32"


_EARLY = "at the 5 % step or before, 30 s"
_RARE = "1.3 x an optimal test"
FAULTS = (
    Fault("crash_at_load", "crashes at load", "no user moved"),
    Fault("crash_after_100", "crashes after 100 requests", _EARLY),
    Fault(WRONG_TEXT, "wrong detokenizer", _EARLY),
    Fault(INT4, "int4 for fp32", _EARLY),
    Fault("penalty", "a repetition penalty of 1.3", ""),
    Fault("ttft_2x", "2 x TTFT", _EARLY),
    Fault("ttft_1.2x", "1.2 x TTFT", _RARE),
    Fault("memory", "memory grows by 4 MB/s", _EARLY),
    Fault("refuses_1_in_50", "refuses 1 in 50", _RARE),
    Fault("hangs_1_in_200", "hangs 1 in 200", _RARE),
    Fault("dead_metrics", "metrics endpoint dies", _EARLY),
)
_unasked: Trial = partial(skip_smoke_test, reason="a fault may be planted in it")


def write_project(folder: Path, rollout: Mapping[str, Any], **sections: Any) -> Project:
    """The shipped speller, with the pace of a larger model; nothing is built yet."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(CHECKOUT / "python_backends", folder / "python_backends", dirs_exist_ok=True)
    shutil.copy(Path(__file__).with_name("planted.py"), folder / _ENGINE)
    with (folder / _ENGINE / "pipeline.py").open("a", encoding="utf-8") as file:
        file.write(_PIPELINE)
    record = {
        "schema": "tritonctl/v1",
        "models": {MODEL: _model("fp32")},
        "rollout": {"user_header": USER_HEADER, **rollout},
        **sections,
    }
    _write(folder, record)
    return load_project(folder)


def _model(precision: str) -> dict[str, Any]:
    engine = {"builder": "openvino", "precision": precision, "max_batch_size": 16}
    checkpoint = str(EXAMPLE / "checkpoint")
    return {"checkpoint": checkpoint, "engine": engine | {"max_seq_len": 256}}


def release(project: Project, fault: str, precision: str = "fp32", text: str = "") -> StoredRelease:
    """Publish one with this fault. text: makes it another release though nothing differs."""
    folder = project.root
    record = json.loads((folder / "tritonctl.yaml").read_text(encoding="utf-8"))
    record["models"][MODEL] = _model(precision)
    _write(folder, record)
    values = (
        f'FAULT = "{fault}"\nFIRST_TOKEN_SECONDS = {FIRST_TOKEN_SECONDS}\n'
        f"STEP_SECONDS = {STEP_SECONDS}\n# {text}\n"
    )
    (folder / _ENGINE / "planted_fault.py").write_text(values, encoding="utf-8")
    detokenizer = folder / "python_backends" / "detokenizer" / "model.py"
    sound = (CHECKOUT / "python_backends" / "detokenizer" / "model.py").read_text(encoding="utf-8")
    planted = _DETOKENIZER if fault == WRONG_TEXT else ""
    detokenizer.write_text(sound + planted, encoding="utf-8")
    changed = load_project(folder)
    build_engine(changed, MODEL, SILENT)
    return publish(changed, SILENT, _unasked).stored


def reset(project: Project) -> None:
    """The project file of the sound engine again."""
    record = json.loads((project.root / "tritonctl.yaml").read_text(encoding="utf-8"))
    record["models"][MODEL] = _model("fp32")
    _write(project.root, record)


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    (folder / "tritonctl.yaml").write_text(json.dumps(record), encoding="utf-8")

# SPDX-License-Identifier: Apache-2.0
"""`generate`, `chat` and `infer` name the right command for a model before they ask for it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tritonctl.cli import application

ENGINE = {"builder": "onnxruntime", "precision": "fp32"}
MODELS = {
    "speller": {"checkpoint": "a", "engine": {"builder": "openvino", "precision": "int8"}},
    "encoder": {"task": "tensors", "checkpoint": "b", "engine": ENGINE},
}


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        (["generate", "spelller", "7"], "the server has no model spelller", "you mean `speller`?"),
        (["chat", "nobody"], "the server has no model nobody", "it has encoder, speller"),
        (["generate", "encoder", "7"], "encoder takes tensors", "tritonctl infer"),
        (["chat", "encoder"], "encoder takes tensors", "tritonctl infer"),
        (["infer", "speller", "--input", "a=1"], "speller streams text", "tritonctl generate"),
        (["infer", "encodr", "--input", "a=1"], "no model encodr", "you mean `encoder`?"),
    ],
)
def test_a_model_of_another_kind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    problem: str,
    remedy: str,
) -> None:
    """Exit code 2, and the command that fits."""
    data = {"schema": "tritonctl/v1", "models": MODELS}
    (tmp_path / "tritonctl.yaml").write_text(json.dumps(data))
    server = SimpleNamespace(models=sorted(MODELS))
    monkeypatch.setattr("tritonctl.runtimes.lifecycle.running_server", lambda _: server)
    done = CliRunner().invoke(application(arguments), [*arguments, "-C", str(tmp_path)])
    assert done.exit_code == 2
    assert problem in done.stderr
    assert remedy in done.stderr

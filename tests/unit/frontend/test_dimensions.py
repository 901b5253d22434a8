# SPDX-License-Identifier: Apache-2.0
"""`dimensions` of embeddings: only where something says that the model was trained for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.task_server import TaskServer, task_server
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.embedding_models import matryoshka_models
from tritonctl.project.file import load_project
from tritonctl.project.frontend import Frontend

MODEL = "encoder"


def project(
    folder: Path, config: object, card: str | None = None, setting: bool | None = None
) -> dict[str, bool]:
    """What is known of the model of a project with this checkpoint."""
    if config is not None:
        (folder / "checkpoint").mkdir()
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / "checkpoint" / "config.json").write_text(text)
        if card is not None:
            (folder / "checkpoint" / "README.md").write_text(card)
    known = "" if setting is None else f"frontend: {{matryoshka: {{m: {str(setting).lower()}}}}}\n"
    (folder / "tritonctl.yaml").write_text(
        "schema: tritonctl/v1\nmodels:\n  m:\n    task: embedding\n    checkpoint: checkpoint\n"
        "    engine: {builder: onnxruntime, precision: fp32}\n" + known
    )
    return matryoshka_models(load_project(folder / "tritonctl.yaml"))


@pytest.mark.parametrize(
    ("config", "card", "setting", "known"),
    [
        ({}, None, None, {"m": False}),
        ({}, "# A model\nIt embeds.", None, {"m": False}),
        ({}, "---\ntags:\n- loss:MatryoshkaLoss\n---\n", None, {"m": True}),
        ({"is_matryoshka": True}, None, None, {"m": True}),
        ({"is_matryoshka": False}, None, None, {"m": False}),
        ({"matryoshka_dimensions": [64, 128]}, None, None, {"m": True}),
        ({}, None, True, {"m": True}),
        ({"is_matryoshka": True}, None, False, {"m": False}),
        ("{", None, None, {}),
        (None, None, None, {}),
        (None, None, True, {"m": True}),
    ],
)
def test_what_a_checkpoint_says(
    tmp_path: Path,
    config: object,
    card: str | None,
    setting: bool | None,
    known: Mapping[str, bool],
) -> None:
    """Its config.json or its model card; the project knows better; nothing is unknown."""
    assert project(tmp_path, config, card, setting) == known


def test_a_setting_for_an_unknown_model() -> None:
    """As for the other fields by model."""
    with pytest.raises(ValueError, match="matryoshka has `m`, expected one of n"):
        Frontend(matryoshka={"m": True}).refuse_unknown_models(["n"])


@pytest.mark.parametrize(
    ("known", "status"), [({MODEL: True}, 200), ({}, 200), ({MODEL: False}, 400)]
)
def test_requests(known: dict[str, bool], status: int) -> None:
    """Whole vectors are never refused."""
    with task_server() as triton:
        http = TestClient(_app(triton, known))
        with http:
            body: dict[str, Any] = {"model": MODEL, "input": "xy"}
            assert http.post("/v1/embeddings", json=body).status_code == 200
            answer = http.post("/v1/embeddings", json=body | {"dimensions": 2})
            assert answer.status_code == status
            if status == 400:
                error = answer.json()["error"]
                assert (error["param"], error["code"]) == ("dimensions", "unsupported_parameter")
                assert "trained for shorter vectors" in error["message"]
                assert len(triton.requests) == 1


def _app(triton: TaskServer, known: dict[str, bool]) -> Any:
    return build_app(FrontendConfig(servers=(triton.url,), models=(MODEL,), matryoshka=known))

# SPDX-License-Identifier: Apache-2.0
"""A real encoder on OpenVINO through a real Triton: the reference library's vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine_cache import build_cached
from tests.servers import ON_FREE_PORTS
from tritonctl.engines.builds.engine import built_engine
from tritonctl.errors import RequestRejectedError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.repository.publish import render
from tritonctl.runtimes.lifecycle import start, stop

pytestmark = [pytest.mark.engine, pytest.mark.server]

MODEL = "encoder"
CLIENTS = 8


@pytest.fixture(scope="module")
def project(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """all-MiniLM-L6-v2 in fp32, exported, compiled and proven."""
    engine = {"builder": "openvino", "precision": "fp32", "max_batch_size": 8}
    models = {MODEL: {"task": "embedding", "checkpoint": str(minilm), "engine": engine}}
    file = tmp_path_factory.mktemp("openvino") / "tritonctl.yaml"
    record = {"schema": "tritonctl/v1", "models": models, "server": ON_FREE_PORTS}
    file.write_text(json.dumps(record), encoding="utf-8")
    project = load_project(file)
    build_cached(project)
    return project


@pytest.fixture(scope="module")
def client(project: Project) -> Iterator[TritonClient]:
    """Of a Triton with it."""
    state, _ = start(project, render(project, Silent()), Silent())
    with TritonClient(state.grpc_url) as client:
        yield client
    stop(project, Silent())


def test_vectors_of_the_reference_library(project: Project, client: TritonClient) -> None:
    """The texts of the proof, all at once, so that they share runs, as sentence-transformers."""
    file = built_engine(project, MODEL).folder / "proof" / "cases.json"
    cases = [
        case
        for case in json.loads(file.read_text(encoding="utf-8"))["cases"]
        if "embedding" in case["expected"]
    ]

    def ask(case: Any) -> Any:
        text = np.array([[case["input"]["text_input"].encode()]], dtype=object)
        return client.infer(MODEL, {"text_input": text}, timeout=60)

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(ask, cases * 3))
    for case, answer in zip(cases * 3, answers, strict=True):
        expected = np.array(case["expected"]["embedding"], dtype=np.float32)
        np.testing.assert_allclose(answer["embedding"][0], expected, atol=1e-5)
        assert answer["num_input_tokens"].tolist() == [[case["expected"]["num_input_tokens"]]]


def test_a_bad_request_fails_alone(client: TritonClient) -> None:
    """Too many tokens for the engine's step, told by name; the next one is answered."""
    long = np.ones((1, 513), dtype=np.int64)
    inputs = {"input_ids": long, "attention_mask": long, "token_type_ids": long * 0}
    with pytest.raises(RequestRejectedError, match=r"input_ids has 513 tokens"):
        client.infer(f"{MODEL}_engine", inputs, timeout=60)
    short = {name: array[:, :7] for name, array in inputs.items()}
    assert client.infer(f"{MODEL}_engine", short, timeout=60)["embedding"].shape == (1, 384)

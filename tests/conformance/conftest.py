# SPDX-License-Identifier: Apache-2.0
"""Which servers the cases are run against: this repository's engines, or the one that is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.wire import Target
from tests.conftest import EXAMPLE
from tests.server.replay import replay_project
from tests.server.trtllm import trtllm_project
from tritonctl.host.progress import Silent
from tritonctl.repository.publish import render
from tritonctl.server.lifecycle import start, stop

# What an engine may or may not have; `needs` in the cases. The shipped speller has all of it.
SPELLER = (
    *("number-speller", "sampling", "penalties", "end_id", "log_probs", "chat"),
    *("no bad_words", "no lora", "no guides"),
)
REPLAY = ("no chat", "no lora", "no guides")
# TensorRT-LLM's engines have all of it. The sampler of its early PyTorch runtimes ignores seeds,
# penalties and bad words: they are refused, as they must be.
TRTLLM_ENGINE = (
    *("number-speller", "sampling", "penalties", "end_id", "log_probs", "chat"),
    *("bad_words", "lora", "guides"),
)
TRTLLM_PYTORCH = (
    *("number-speller", "end_id", "log_probs", "chat"),
    *("no seeds", "no bad_words", "lora", "guides"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a run against somebody else's server."""
    group = parser.getgroup("conformance")
    group.addoption("--endpoint", help="HOST:PORT of a Triton's gRPC endpoint")
    group.addoption("--model", help="name of the text-generation ensemble there")
    group.addoption("--has", action="append", help="what its engine has of the cases' `needs`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every case against every server."""
    if "target" in metafunc.fixturenames:
        # Loaded late, in a run of all tests, this file's options do not exist.
        given = metafunc.config.getoption("--endpoint", default=None)
        if given and not metafunc.config.getoption("--model"):
            raise pytest.UsageError("--endpoint needs --model NAME, the ensemble's name there")
        names = (
            ["endpoint"]
            if given
            else [
                "speller",
                "replay",
                "trtllm_engine",
                "trtllm_pytorch",
            ]
        )
        metafunc.parametrize("target", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Target:
    """The model under test."""
    found: Target = request.getfixturevalue(f"{request.param}_target")
    return found


@pytest.fixture(scope="module")
def endpoint_target(request: pytest.FixtureRequest) -> Target:
    """What the command line names."""
    option = request.config.getoption
    return Target(option("--endpoint"), option("--model"), option("--has"))


@pytest.fixture(scope="module")
def speller_target(request: pytest.FixtureRequest) -> Target:
    """The shipped checkpoint through the OpenVINO engine."""
    return Target(request.getfixturevalue("speller_server").grpc_url, "exact", SPELLER)


@pytest.fixture(scope="module")
def replay_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """An engine without a model: it says what the prompt says."""
    folder = tmp_path_factory.mktemp("conformance")
    project = replay_project(folder, {"replay": (EXAMPLE / "checkpoint" / "tokenizer.json", [])})
    state, _ = start(project, render(project, Silent()), Silent())
    yield Target(state.grpc_url, "replay", REPLAY)
    stop(project, Silent())


@pytest.fixture(scope="module")
def trtllm_engine_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The shipped checkpoint as an engine for the stand-in of TensorRT-LLM."""
    yield from _trtllm(tmp_path_factory.mktemp("trtllm"), "engine", "1.2.1", TRTLLM_ENGINE)


@pytest.fixture(scope="module")
def trtllm_pytorch_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The checkpoint itself, for a release without engines."""
    folder = tmp_path_factory.mktemp("trtllm_pytorch")
    yield from _trtllm(folder, "pytorch", "1.3.0rc22", TRTLLM_PYTORCH)


def _trtllm(folder: Path, world: str, version: str, has: tuple[str, ...]) -> Iterator[Target]:
    project = trtllm_project(folder, world=world, version=version)
    state, _ = start(project, render(project, Silent()), Silent())
    yield Target(state.grpc_url, "speller", has)
    stop(project, Silent())

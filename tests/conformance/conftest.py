# SPDX-License-Identifier: Apache-2.0
"""Which servers the cases are run against: this repository's engines, or the one that is named."""

from __future__ import annotations

import pytest

from tests.configurations import FUSED
from tests.conformance.cases import CASES, assigned
from tests.conformance.wire import Answer, Target
from tests.servers import Handle
from tritonctl.runtimes.server_state import Server

Answers = dict[str, dict[str, Answer]]

# What an engine may or may not have; `needs` in the cases. The shipped speller has all of it.
SPELLER = (
    *("number-speller", "sampling", "penalties", "end_id", "log_probs", "chat"),
    *("no bad_words", "no lora", "guides", "grammars"),
)
REPLAY = ("no chat", "no lora")
# TensorRT-LLM's engines have all of it, but grammars are beyond their stand-in. The sampler of its
# early PyTorch runtimes ignores seeds, penalties and bad words: they are refused, as they must be.
TRTLLM_ENGINE = (
    *("number-speller", "sampling", "penalties", "end_id", "log_probs", "chat"),
    *("bad_words", "lora", "guides"),
)
TRTLLM_PYTORCH = (
    *("number-speller", "end_id", "log_probs", "chat"),
    *("no seeds", "no bad_words", "lora", "guides"),
)

# The first one gets all refusals; any can refuse.
ENGINES = {
    "replay": REPLAY,
    "speller": SPELLER,
    "fused": SPELLER,
    "trtllm_engine": TRTLLM_ENGINE,
    "trtllm_pytorch": TRTLLM_PYTORCH,
}
# Each in the process of a run that has its server.
MARKS = {
    "speller": [pytest.mark.path, pytest.mark.xdist_group("speller")],
    "fused": [pytest.mark.xdist_group("inline")],
    "replay": [pytest.mark.xdist_group("replay")],
    "trtllm_engine": [pytest.mark.xdist_group("trtllm")],
    "trtllm_pytorch": [pytest.mark.xdist_group("trtllm_pytorch")],
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a run against somebody else's server."""
    group = parser.getgroup("conformance")
    group.addoption("--endpoint", help="HOST:PORT of a Triton's gRPC endpoint")
    group.addoption("--model", help="name of the text-generation ensemble there")
    group.addoption("--has", action="append", help="what its engine has of the cases' `needs`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cases against each server: those that it gets, or all where one is named."""
    if "target" in metafunc.fixturenames:
        # Loaded late, in a run of all tests, this file's options do not exist.
        given = metafunc.config.getoption("--endpoint", default=None)
        if given and not metafunc.config.getoption("--model"):
            raise pytest.UsageError("--endpoint needs --model NAME, the ensemble's name there")
        pairs = [("endpoint", name) for name in CASES] if given else assigned(ENGINES)
        params = [
            pytest.param(engine, name, marks=MARKS.get(engine, ()), id=f"{engine}-{name}")
            for engine, name in pairs
        ]
        metafunc.parametrize(("target", "name"), params, indirect=["target"])


@pytest.fixture
def target(request: pytest.FixtureRequest, answers: Answers) -> Target:
    """The model under test."""
    found: Target = request.getfixturevalue(f"{request.param}_target")
    found.answers = answers.setdefault(request.param, {})
    return found


@pytest.fixture(scope="session")
def answers() -> Answers:
    """What each target has answered to the cases that others refer to."""
    return {}


@pytest.fixture
def endpoint_target(request: pytest.FixtureRequest) -> Target:
    """What the command line names."""
    option = request.config.getoption
    return Target(option("--endpoint"), option("--model"), option("--has"))


@pytest.fixture
def speller_target(speller_server: Server) -> Target:
    """The shipped checkpoint through the OpenVINO engine."""
    return Target(speller_server.grpc_url, "exact", SPELLER)


@pytest.fixture
def fused_target(request: pytest.FixtureRequest, inline_handle: Handle) -> Target:
    """The same as one model, without an ensemble."""
    return Target(inline_handle.ready(request.node).grpc_url, FUSED, SPELLER)


@pytest.fixture
def replay_target(replay_server: Server) -> Target:
    """An engine without a model: it says what the prompt says."""
    return Target(replay_server.grpc_url, "replay", REPLAY)


@pytest.fixture
def trtllm_engine_target(trtllm_server: Server) -> Target:
    """The shipped checkpoint as an engine for the stand-in of TensorRT-LLM."""
    return Target(trtllm_server.grpc_url, "speller", TRTLLM_ENGINE)


@pytest.fixture
def trtllm_pytorch_target(trtllm_pytorch_server: Server) -> Target:
    """The checkpoint itself, for a release without engines."""
    return Target(trtllm_pytorch_server.grpc_url, "speller", TRTLLM_PYTORCH)
